"""Counts over the rounds of a decode that the paper's tables 1, 5 and 8 are made of."""

from __future__ import annotations

from typing import Any

from reanchor.benchmark.gate import common_prefix_length
from reanchor.core import Draft, Round
from reanchor.drafters.base import Drafter, WrappedDrafter
from reanchor.proposal.matching import sites


class CountingDrafter(WrappedDrafter):
    """A drafter that leaves its last draft to be looked at."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.last: Draft | None = None

    def draft(self, *args: Any, **kwargs: Any) -> Draft:
        self.last = self.drafter.draft(*args, **kwargs)
        return self.last

    def taken(self) -> Draft | None:
        """The draft of the round just seen; None when the round drafted nothing."""
        last, self.last = self.last, None
        return last


class RoundCounter:
    """Named counts since the last `take`."""

    names: tuple[str, ...] = ()

    def __init__(self, drafter: CountingDrafter) -> None:
        self.drafter = drafter
        self.counts = dict.fromkeys(self.names, 0)

    def see(self, round_: Round) -> None:
        raise NotImplementedError

    def take(self) -> dict[str, int]:
        counts, self.counts = self.counts, dict.fromkeys(self.names, 0)
        return counts


class Alignment(RoundCounter):
    """Where shifted blocks start in the baseline (Table 5), over blocks that start somewhere in it."""

    names = ("blocks", "matched", "shifted_only", "multiple")

    def see(self, round_: Round) -> None:
        draft = self.drafter.taken()
        if draft is None:
            return
        for offset, block in zip(draft.offsets[1:], draft.blocks[1:], strict=True):
            found = sites(draft.blocks[0], block)
            self.counts["blocks"] += 1
            self.counts["matched"] += bool(found)
            self.counts["shifted_only"] += bool(found) and offset not in found
            self.counts["multiple"] += len(found) > 1


class Earliest(RoundCounter):
    """How often the earliest site is as good as any (Table 8); the tree holds the paths of all sites.

    A group is a round and an offset. It is eligible when one of its paths is accepted as far as the best of the
    round, and won when the earliest site's path is.
    """

    names = ("groups", "eligible", "won")

    def see(self, round_: Round) -> None:
        draft = self.drafter.taken()
        if draft is None:
            return
        baseline, accepted = draft.blocks[0], round_.tokens[: round_.accepted]
        for block in draft.blocks[1:]:
            paths = [baseline[1:site] + block[site == 0 :] for site in sites(baseline, block)]
            if paths:
                lengths = [common_prefix_length(path, accepted) for path in paths]
                self.counts["groups"] += 1
                self.counts["eligible"] += max(lengths) == len(accepted)
                self.counts["won"] += lengths[0] == len(accepted)


class Agreement(RoundCounter):
    """Drafts behind the first rejected one that are the target's own choice all the same (Table 1).

    For chains: the drafts are the nodes in order.
    """

    names = ("after_rejection", "agreeing")

    def see(self, round_: Round) -> None:
        tree, result = round_.tree, round_.result
        first = len(result.path)  # the node of the first draft that was not accepted
        if first >= len(tree) or tree.tokens[first] == result.tokens[-1]:
            return  # all accepted, or decoding ended with an accepted one
        for node in range(first + 1, len(tree)):
            self.counts["after_rejection"] += 1
            self.counts["agreeing"] += tree.tokens[node] == result.choices[tree.parents[node]]
