"""The few values that travel between the rooms; it knows no model, no clock and no text.

Letters, used in every shape comment of the project: P prompt, C committed context, N tree nodes, B block
size, K proposals a block yields, n retained states, V vocabulary, H hidden size, Dc width of the concatenated
taps. Batch size is one everywhere: a row of a batch is a call of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

ROOT, VERIFIER_PATH, BASELINE = -1, -2, 0  # origins of a node; a shifted block's origin is its offset d >= 1
RECALL, TEXT = (
    -3,
    -4,
)  # method auto only: what the target said after the same tokens, what followed them before


@dataclass(frozen=True)
class Retained:
    """What the last verification left beyond the accepted path: R_1..R_n and a_1..a_n of the method.

    State k (from 0) belongs to position i+k, where i is the position of the current anchor; `tokens[k]` is
    what the target chose after it, for position i+k+1.
    """

    tokens: tuple[int, ...] = ()
    features: Tensor | None = None  # [n, Dc]; None exactly when n == 0

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Draft:
    """What a drafter proposes in one batched call: the baseline block first, then one row a shifted block."""

    offsets: tuple[
        int, ...
    ]  # [blocks]; 0 for the baseline, d for the block anchored at a_d; empty: nothing drafted
    blocks: list[
        list[int]
    ]  # [blocks][K + 1]; g(d): the anchor, then K proposals (fewer when the drafter cuts them)
    candidates: Tensor | None = None  # [blocks, K, k] token ids, best first; None unless asked for
    log_probs: Tensor | None = None  # [blocks, K, k] their log-probabilities under the drafter
    distribution: Tensor | None = (
        None  # [K, V] what each proposal of the baseline was drawn from; None: argmax
    )
    confidence: Tensor | None = None  # [blocks, K] P(accepted | all before accepted), from a head made for it
    coupled: bool = False  # tokens and log-probabilities are what the numbers of the target's draw favour


@dataclass(frozen=True)
class Tree:
    """The tokens the target checks in one pass: the anchor first, parents before children."""

    tokens: list[int]  # [N]
    parents: list[int]  # [N]; parents[0] == -1, parents[v] < v
    depths: list[int]  # [N]; depths[0] == 0; node v has position i + depths[v]
    origins: list[int]  # [N]; which source put the node in: ROOT, VERIFIER_PATH, BASELINE or an offset d
    paths: list[list[int]]  # inserted paths as node indices from the root, in insertion order
    matched: int = 0  # shifted blocks that found a place
    children: dict[tuple[int, int], int] = field(default_factory=dict)  # (parent, token) -> node
    values: list[float] = field(
        default_factory=list
    )  # [N] expected acceptance of each node, where it was priced

    def __len__(self) -> int:
        return len(self.tokens)

    def ancestry(self) -> np.ndarray:
        """[N, N] bool: row v sees column u when u is v or an ancestor of v."""
        sees = np.zeros((len(self), len(self)), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                sees[node] = sees[parent]
            sees[node, node] = True
        return sees


@dataclass(frozen=True)
class VerifyResult:
    """What the target accepted of a tree. `path` and `tokens` have the same length, at least one."""

    path: list[int]  # the root and the accepted nodes, in depth order; their rows stay in the caches
    tokens: list[int]  # the token committed after each node of the path: the accepted drafts, then the bonus
    choices: list[int]  # [N] the target's own token at every node; its favourite at those that drew none
    stopped: bool  # decoding ends with the last of `tokens`


@dataclass(frozen=True)
class Plan:
    """What one round was given, and why.

    name: plain, known (a tree of what is known without drafting), baseline or shifted; rule with other methods.
    why: fixed (a budget was given), pays (most expected tokens per second) or probe (not seen for long).
    """

    name: str
    blocks: int  # to draft
    why: str


@dataclass(frozen=True)
class Round:
    """One round as its consumer sees it; the prefill is a round that proposes nothing."""

    tokens: list[int]  # committed, in order; the last is the bonus unless a draft ended the decoding
    tree: Tree
    result: VerifyResult
    drafted: int  # blocks drafted
    retained: int  # states retained from the round before
    stopped: bool
    cache: object = (
        None  # the target's cache, committed up to the token before the last; the loop goes on with it
    )
    plan: Plan | None = None  # method auto

    @property
    def origins(self) -> list[int]:
        """Where each committed token came from; ROOT stands for the bonus."""
        last = self.tree.children.get(
            (self.result.path[-1], self.tokens[-1])
        )  # a draft that ended the decoding
        nodes = [*self.result.path[1:], 0 if last is None else last]
        return [self.tree.origins[node] for node in nodes]

    @property
    def edges(self) -> list[tuple[float, bool]]:
        """Method auto: (price, was it taken) of every edge whose parent was accepted and judged."""
        values, path = self.tree.values, set(self.result.path)
        if not values:
            return []
        return [
            (round(values[node] / values[parent], 4) if values[parent] else 0.0, node in path)
            for node, parent in enumerate(self.tree.parents)
            if parent in path and not (self.stopped and parent == self.result.path[-1])
        ]

    @property
    def accepted(self) -> int:
        """Drafts accepted: the committed tokens that the tree held."""
        return sum(origin != ROOT for origin in self.origins)
