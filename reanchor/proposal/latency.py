"""What a round takes: seconds of a pass by its nodes and of a draft by its blocks, as measured once and corrected by
every round since. It is told seconds and has no clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial

from reanchor.proposal.session_stats import SessionStats

RATE = 0.1  # weight of the newest round
OUTLIER = 4.0  # a round this many times over or under its price says no more than that
LEAST = 1e-9  # seconds of anything


class LatencyModel:
    """verify: tree nodes -> seconds, draft: blocks -> seconds, both behind `measured` tokens of context; slopes: by
    the same sizes, seconds more for every token of context. `laps` holds the stages of the round under way.
    """

    def __init__(
        self,
        verify: Mapping[int, float],
        draft: Mapping[int, float],
        slopes: Mapping[str, Mapping[int, float]] | None = None,
        measured: int = 0,
    ) -> None:
        self.curves = {"verify": dict(sorted(verify.items())), "draft": dict(sorted(draft.items()))}
        self.slopes = {name: dict(sorted(slope.items())) for name, slope in (slopes or {}).items()}
        self.measured = self.context = measured  # `context`: tokens committed now
        self.experience = SessionStats()
        self.lines: dict[tuple[str, int], tuple[float, float]] = {}  # seconds, slope by stage and size
        self.laps: dict[str, float] = {}
        self.size: tuple[int, int] | None = None  # blocks and nodes of the round that the laps are of

    def fresh(self) -> LatencyModel:
        """For another decode: rounds of its own, the experience shared."""
        other = LatencyModel(self.curves["verify"], self.curves["draft"], self.slopes, self.measured)
        other.experience, other.lines = self.experience, self.lines
        return other

    def as_measured(self, stage: str, size: int) -> float:
        """Seconds of a stage at the present context, linear in it."""
        if (stage, size) not in self.lines:
            slope = interpolate(self.slopes[stage], size) if stage in self.slopes else 0.0
            self.lines[stage, size] = interpolate(self.curves[stage], size), slope
        seconds, slope = self.lines[stage, size]
        return max(seconds + (self.context - self.measured) * slope, seconds / OUTLIER, LEAST)

    def verify(self, nodes: int) -> float:
        return self.experience.costs["verify"] * self.as_measured("verify", nodes)

    def draft(self, blocks: int) -> float:
        return self.experience.costs["draft"] * self.as_measured("draft", blocks) if blocks else 0.0

    def round(self, blocks: int, nodes: int) -> float:
        return (
            self.draft(blocks)
            + self.verify(nodes)
            + (self.experience.costs["overhead"] if nodes > 1 else 0.0)
        )

    def close(self, blocks: int, nodes: int) -> None:
        """The tree of a round was verified; what its stages take till the next begins counts as this round's."""
        self.size = (blocks, nodes)

    def correct(self) -> float:
        """Before the next round: learn from the laps of the last, and say how long it took; 0 where nobody did."""
        laps, self.laps, size, self.size = self.laps, {}, self.size, None
        if size is None or not laps:
            return 0.0
        learnt = self.experience.costs
        for stage, count in zip(("draft", "verify"), size, strict=True):
            if count and stage in laps:
                ratio, scale = laps[stage] / self.as_measured(stage, count), learnt[stage]
                learnt[stage] += RATE * (min(max(ratio, scale / OUTLIER), scale * OUTLIER) - scale)
        if size[1] > 1:
            spent, overhead = laps.get("assemble", 0.0) + laps.get("commit", 0.0), learnt["overhead"]
            # one stall must not make every tree look dear: nobody would verify one again, and learn better
            spent = min(max(spent, 0.0), OUTLIER * overhead or self.verify(size[1]))
            learnt["overhead"] += RATE * (spent - overhead) if overhead else spent
        return self.round(*size)

    def best_size(self, values: Sequence[float], throughput: float, made: bool = False) -> tuple[float, int]:
        """(tokens beyond those its seconds are worth, nodes) of the best beginning of a tree. values: of its nodes,
        best first; throughput: tokens that a second gives elsewhere; made: what making it takes is spent.
        """
        best, expected = (-math.inf, 1), 0.0
        seconds = self.verify if made else partial(self.round, 0)
        for nodes, value in enumerate(values, 1):
            expected += value
            best = max(best, (expected - throughput * seconds(nodes), nodes))
        return best


class StoppingRule:
    """Whether any more of a tree can pay, asked node by node as it grows: the nodes let in have a beginning worth as
    much as any of all there could be. Values fall, so the next one's bounds all that follow, and as seconds are linear
    between the sizes measured, the sum of bounds less their price is largest at the next size or at one of those.
    """

    def __init__(
        self, costs: LatencyModel, throughput: float, trust: float, most: int, made: bool = False
    ) -> None:
        """Args: trust: factor of every value; most: nodes there may be; throughput and made as in `best_size`."""
        seconds = costs.verify if made else partial(costs.round, 0)
        self.price = lambda nodes: throughput * seconds(nodes)
        sizes = [size for size in costs.curves["verify"] if size < most]
        self.ends = [(size, self.price(size)) for size in (*sizes, most)]
        self.trust, self.nodes, self.expected = trust, 1, 1.0
        self.best = 1.0 - self.price(1)

    def pays(self, value: float) -> bool:
        """Of the next node, which is let in if so."""
        value, next_ = self.trust * value, self.nodes + 1
        net = self.expected + value - self.price(next_)
        if net <= self.best and all(
            self.expected + (size - self.nodes) * value - price <= self.best
            for size, price in self.ends
            if size > next_
        ):
            return False
        self.nodes, self.expected, self.best = next_, self.expected + value, max(self.best, net)
        return True


def interpolate(curve: Mapping[int, float], size: int) -> float:
    """Linear between the sizes measured, the last slope beyond them."""
    sizes = list(curve)
    if len(sizes) == 1:
        return curve[sizes[0]]
    right = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
    low, high = sizes[right - 1], sizes[right]
    slope = (curve[high] - curve[low]) / (high - low)
    return max(curve[low] + slope * (size - low), min(curve.values()))
