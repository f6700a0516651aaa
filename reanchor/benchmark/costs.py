"""What one verify pass costs against its width and one draft against its blocks, on this machine.

Sizes take turns, so that a machine's moods fall on all of them; the median of the turns is the cost.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from reanchor.core import Retained, Tree
from reanchor.decoder import SpeculativeDecoder
from reanchor.proposal import Trie
from reanchor.stats import Stopwatch

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
REPEATS = 7


@dataclass(frozen=True)
class Costs:
    """Seconds by size."""

    context: int  # committed tokens while it was measured
    verify: dict[int, float]  # trie nodes -> one pass of the target
    draft: dict[int, float]  # blocks -> one call of the drafter

    def break_even(self, nodes: int, blocks: int) -> float:
        """The acceptance length at which a round of this size is as fast as plain decoding."""
        return (self.verify[nodes] + self.draft[blocks]) / self.verify[1]

    def to_dict(self) -> dict[str, Any]:
        return {
            "context": self.context,
            "verify": {str(size): cost for size, cost in self.verify.items()},
            "draft": {str(size): cost for size, cost in self.draft.items()},
        }


def from_dict(given: dict[str, Any]) -> Costs:
    curves = [{int(size): cost for size, cost in given[name].items()} for name in ("verify", "draft")]
    return Costs(given["context"], *curves)


@torch.no_grad()
def measure(
    decoder: SpeculativeDecoder, prompt: list[int], widths: Sequence[int] = WIDTHS, repeats: int = REPEATS
) -> Costs:
    """Both curves behind one prompt."""
    target, drafter = decoder.target, decoder.drafter
    ids = torch.tensor(prompt, device=target.device)
    cache, context = target.new_cache(), drafter.new_cache()
    drafter.commit(target.prefill(ids, cache).features, context)
    tail = target.verify(
        bush(drafter.proposals + 1, prompt[-1], target.vocabulary), cache
    )  # rejected states to draft from
    retained = Retained(tuple(tail.logits.argmax(-1).tolist()[1:]), tail.features[1:])
    blocks = sorted({1, 2, 4, 8, len(retained) + 1} & set(range(1, len(retained) + 2)))
    trees = {width: bush(width, prompt[-1], target.vocabulary) for width in sorted({1, *widths})}
    clock = Stopwatch(decoder.synchronize())
    passes = {width: partial(target.verify, tree, cache) for width, tree in trees.items()}
    drafts = {
        count: partial(drafter.draft, prompt[-1], retained, range(1, count), context) for count in blocks
    }
    verify, draft = turns(clock, passes, repeats), turns(clock, drafts, repeats)
    return Costs(len(prompt), verify, draft)


def bush(nodes: int, anchor: int, vocabulary: int) -> Tree:
    """A binary trie, as ragged as real ones are."""
    trie = Trie(anchor)
    for node in range(1, nodes):
        trie.add((node - 1) // 2, node % vocabulary, 0)
    return trie.freeze()


def turns(clock: Stopwatch, calls: Mapping[int, Callable[[], object]], repeats: int) -> dict[int, float]:
    """Median seconds of each call, all of them once a turn; the first turn warms up."""
    laps: dict[int, list[float]] = {size: [] for size in calls}
    for turn in range(repeats + 1):
        for size, call in calls.items():
            start = clock.now()
            call()
            if turn:
                laps[size].append(clock.now() - start)
    return {size: statistics.median(each) for size, each in laps.items()}
