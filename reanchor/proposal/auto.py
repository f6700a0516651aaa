"""Method auto: the most valuable trie of all that is known before the target speaks, one object a decode.

A round is three steps: every source claims (sources.py), claims are priced (prices.py), nodes are taken best-first by
the product of prices along their path, which for prices of at most one is the best tree of any size. Numbers only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from reanchor.core import Draft, Tree, Verdict
from reanchor.proposal.prices import Prices
from reanchor.proposal.sources import (
    QUOTED,
    Chances,
    Claim,
    Recall,
    Shifted,
    Source,
    Text,
    baseline,
    verifier_path,
)
from reanchor.proposal.trie import Trie

CANDIDATES = 16  # of the drafter, at every position of a block
BELIEFS = 8  # of the target's candidates at every node, kept for later rounds

Offer = tuple[float, int, int]  # price, token, origin


class Auto:
    """What one decode has learnt, and the tries it makes of it."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prices, self.recall, self.text = Prices(), Recall(), Text()
        self.text.extend(prompt)
        self.states: list[Chances] = []  # the target's candidates at the retained states
        self.sources: list[Source] = []

    def assemble(self, draft: Draft, max_nodes: int | None, max_depth: int) -> Tree:
        """The best trie for this round's draft. Its paths are left out: `first_children` finds the rejected one."""
        self.sources = [*drafted(draft), verifier_path(self.states), self.recall, self.text]
        trie = Trie(draft.blocks[0][0], max_nodes, max_depth)
        values = grow(trie, lambda node: self.prices.of(self.claims(trie, node), trie.depths[node]))
        return trie.freeze(len({origin for origin in trie.origins if origin > 0}), values)

    def claims(self, tree: Trie | Tree, node: int) -> list[Claim]:
        path, depth = self.path(tree, node), tree.depths[node]
        return [claim for source in self.sources for claim in source.claims(path, depth)]

    def path(self, tree: Trie | Tree, node: int) -> list[int]:
        """The end of the text before the anchor, then the tokens from the anchor to the node."""
        below = []
        while node >= 0:
            below.append(tree.tokens[node])
            node = tree.parents[node]
        return [*self.text.text[-QUOTED:-1], *reversed(below)]

    def learn(self, tree: Tree, verdict: Verdict, beliefs: Sequence[Chances], kept: Sequence[int]) -> None:
        """After a round: earn the shares, remember the target's candidates at every node. beliefs: [N]; kept: the
        nodes whose states are retained.
        """
        for node, token in zip(verdict.path, verdict.tokens, strict=True):
            self.prices.learn(self.claims(tree, node), tree.depths[node], token)
        for node in [*range(len(tree)), *verdict.path]:  # what was accepted has the last word on its context
            self.recall.learn(self.path(tree, node), beliefs[node])
        self.states = [beliefs[node] for node in kept]
        self.text.extend(verdict.tokens)


def drafted(draft: Draft) -> list[Source]:
    """The blocks as sources; a draft of nothing but the anchor has none."""
    if draft.candidates is None or draft.log_probs is None:
        return []
    rows = [
        [dict(zip(*row, strict=True)) for row in zip(*block, strict=True)]
        for block in zip(draft.candidates.tolist(), draft.log_probs.exp().tolist(), strict=True)
    ]
    shifted = zip(draft.offsets[1:], draft.blocks[1:], rows[1:], strict=True)
    return [baseline(rows[0]), *(Shifted(offset, block[0], row) for offset, block, row in shifted)]


def grow(trie: Trie, offers: Callable[[int], list[Offer]]) -> list[float]:
    """Add the most valuable nodes until the budget or the offers are spent; the value of every node.

    offers(node): what may follow it, dearest first. A node's value is the product of the prices along its path: the
    probability, if prices are right, that the round accepts it; their sum is the expected acceptance length.
    """
    values = [1.0]
    open_offers: dict[int, list[Offer]] = {}
    frontier: list[tuple[float, int, int]] = []  # (minus value, parent, place in its offers)

    def open_next(parent: int, place: int) -> None:
        if place < len(open_offers[parent]):
            value = values[parent] * open_offers[parent][place][0]
            heapq.heappush(frontier, (-value, parent, place))

    def open_children(node: int) -> None:
        if trie.max_depth is None or trie.depths[node] < trie.max_depth:
            open_offers[node] = offers(node)
            open_next(node, 0)

    open_children(0)
    while frontier and (trie.max_nodes is None or len(trie.tokens) < trie.max_nodes):
        value, parent, place = heapq.heappop(frontier)
        _, token, origin = open_offers[parent][place]
        node = trie.add(parent, token, origin)
        values.append(-value)
        open_children(node)
        open_next(parent, place + 1)
    return values


def first_children(tree: Tree, verdict: Verdict) -> list[int]:
    """Down from the last accepted node by the first child, the likeliest one: the rejected path of a priced tree."""
    first: dict[int, int] = {}
    for node, parent in enumerate(tree.parents):
        first.setdefault(parent, node)
    kept, node = [], verdict.path[-1]
    while node in first:
        node = first[node]
        kept.append(node)
    return kept
