"""What a round takes: seconds of a pass by its nodes and of a draft by its blocks, as measured once and corrected by
every round since. It is told seconds and has no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

RATE = 0.1  # weight of the newest round
OUTLIER = 4.0  # a round this many times over or under its price says no more than that


class Costs:
    """verify: trie nodes -> seconds, draft: blocks -> seconds; `laps` holds the stages of the round under way."""

    def __init__(self, verify: Mapping[int, float], draft: Mapping[int, float]) -> None:
        self.curves = {"verify": dict(sorted(verify.items())), "draft": dict(sorted(draft.items()))}
        self.scale = {"verify": 1.0, "draft": 1.0}
        self.overhead = 0.0  # of making a trie and learning from it
        self.laps: dict[str, float] = {}
        self.size: tuple[int, int] | None = None  # blocks and nodes of the round that the laps are of

    def fresh(self) -> Costs:
        """The same curves, uncorrected: what one decode learns is its own."""
        return Costs(self.curves["verify"], self.curves["draft"])

    def verify(self, nodes: int) -> float:
        return self.scale["verify"] * interpolate(self.curves["verify"], nodes)

    def draft(self, blocks: int) -> float:
        return self.scale["draft"] * interpolate(self.curves["draft"], blocks) if blocks else 0.0

    def round(self, blocks: int, nodes: int) -> float:
        return self.overhead + self.draft(blocks) + self.verify(nodes)

    def close(self, blocks: int, nodes: int) -> None:
        """The trie of a round was verified; what its stages take till the next begins counts as this round's."""
        self.size = (blocks, nodes)

    def correct(self) -> None:
        """Before the next round: learn from the laps of the last."""
        laps, self.laps, size, self.size = self.laps, {}, self.size, None
        if size is None or not laps:
            return
        for stage, count in zip(("draft", "verify"), size, strict=True):
            if count and stage in laps:
                ratio, scale = laps[stage] / interpolate(self.curves[stage], count), self.scale[stage]
                self.scale[stage] += RATE * (min(max(ratio, scale / OUTLIER), scale * OUTLIER) - scale)
        if size[1] > 1:
            spent = laps.get("assemble", 0.0) + laps.get("commit", 0.0)
            self.overhead += RATE * (spent - self.overhead) if self.overhead else spent

    def best_size(self, values: Sequence[float], blocks: int, extra: float = 0.0) -> tuple[float, int]:
        """(tokens per second, nodes) of the best beginning of a trie. values: of its nodes, best first; extra: tokens
        expected on top of them.
        """
        best, expected = (0.0, 1), extra
        for nodes, value in enumerate(values, 1):
            expected += value
            best = max(best, (expected / self.round(blocks, nodes), nodes))
        return best


def interpolate(curve: Mapping[int, float], size: int) -> float:
    """Linear between the sizes measured, the last slope beyond them."""
    sizes = list(curve)
    if len(sizes) == 1:
        return curve[sizes[0]]
    right = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
    low, high = sizes[right - 1], sizes[right]
    slope = (curve[high] - curve[low]) / (high - low)
    return max(curve[low] + slope * (size - low), min(curve.values()))
