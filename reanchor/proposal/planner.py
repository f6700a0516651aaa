"""How much a round is given: nothing, a tree of what is known already, a drafted block, shifted blocks too.

The four are compared by expected tokens less what their seconds would give at the throughput of this decode, whose
length is given: time won in another is no use to it. The throughput is an average over many rounds that begins
with some of plain decoding, as one lucky round must not make all else look slow. What a draft is worth is known only by
drafting, so it is an exponential average, renewed by a probe when it has not been seen for a while. Where the next
decode begins is what the decodes before it came to (`SessionStats`).
"""

from __future__ import annotations

from collections.abc import Sequence

from reanchor.core import Plan
from reanchor.proposal.latency import LatencyModel, StoppingRule
from reanchor.proposal.session_stats import PRIOR_WEIGHT, PROBE_INTERVAL

RATE = 0.1  # weight of the newest round within a decode
PRIOR_ROUNDS = (
    4.0  # rounds that what is known beforehand is worth: the first rounds weigh 1 / (EARLY + rounds)
)
SESSION_RATE = 0.03  # weight of the newest round in what later decodes begin with
PROBE_TIME_SHARE = 0.02  # of the time at most goes into probes of one kind, however often they fail
MAX_PROBE_BLOCKS = 4  # blocks of a probe at most: the first shifted blocks say what the others are worth
PRIOR_PLAIN_ROUNDS = 8.0  # rounds of plain decoding that the throughput begins with
THROUGHPUT_RATE = 0.05  # weight of the newest round in the throughput


class RoundPlanner:
    """Chooses a plan each round of one decode from what was expected and what came of it."""

    def __init__(self, costs: LatencyModel, drafts: bool = True) -> None:
        self.costs, self.experience, self.drafts = costs, costs.experience, drafts
        self.worth = dict(self.experience.worth)
        self.seen = dict.fromkeys(self.worth, 0)  # rounds of this decode that drafted the kind
        self.predicted = dict.fromkeys(
            self.experience.predicted, PRIOR_WEIGHT
        )  # of this decode, and what came of it
        self.came = {kind: PRIOR_WEIGHT * self.experience.trust(kind) for kind in self.predicted}
        self.tokens, self.seconds = (
            PRIOR_PLAIN_ROUNDS,
            PRIOR_PLAIN_ROUNDS * costs.verify(1),
        )  # of late, each round fading

    @property
    def throughput(self) -> float:
        """Tokens that a second gives: the speed of late, at least that of plain decoding."""
        return max(1 / self.costs.verify(1), self.tokens / self.seconds)

    def choose(self, known: Sequence[float], shifts: int) -> Plan:
        """known: values of the tree that needs no draft, best first; shifts: shifted blocks there could be."""
        blocks = {"lookup": 0}
        if self.drafts:
            blocks.update({"baseline": 1, **({"shifted": 1 + shifts} if shifts else {})})
        experience = self.experience
        for kind in experience.rounds_since_draft:
            experience.rounds_since_draft[kind] += 1
        for kind, rounds in experience.rounds_since_draft.items():
            if kind in blocks and rounds > experience.probe_interval[kind]:
                tried = min(blocks[kind], MAX_PROBE_BLOCKS)
                rarely = self.costs.draft(tried) / (PROBE_TIME_SHARE * self.costs.verify(1))
                experience.probe_interval[kind] = min(
                    2 * experience.probe_interval[kind], max(PROBE_INTERVAL, round(rarely))
                )
                return Plan(kind, tried, "probe")
        net = self.size(known, "lookup")[0]
        worth, throughput = self.worth, self.throughput
        nets = {
            "plain": 1 - throughput * self.costs.verify(1),  # first: where it is as good, it is chosen
            "lookup": net,
        }
        if self.drafts:
            nets["baseline"] = net + worth["baseline"] - throughput * self.costs.draft(1)
        if self.drafts and shifts:
            both = worth["baseline"] + worth["shifted"]
            nets["shifted"] = net + both - throughput * self.costs.draft(1 + shifts)
        name = max(nets, key=lambda each: nets[each])
        self._note(name)
        return Plan(name, blocks.get(name, 0), "pays")

    def trust(self, kind: str) -> float:
        """The part of what is predicted beyond the bonus that comes in this decode."""
        return self.came[kind] / self.predicted[kind]

    def size(self, values: Sequence[float], kind: str, made: bool = False) -> tuple[float, int]:
        """(tokens beyond what its seconds are worth, the draft's apart; nodes) of the best beginning of a tree.
        made: is the tree there already?
        """
        trust = self.trust(kind)
        return self.costs.best_size(
            [values[0], *(trust * value for value in values[1:])], self.throughput, made
        )

    def growth(self, kind: str, most: int, made: bool = False) -> StoppingRule:
        """Of a tree of at most so many nodes, as far as it can pay."""
        return StoppingRule(self.costs, self.throughput, self.trust(kind), most, made)

    def learn(
        self, plan: Plan, known: float, drafted: float, predicted: float, tokens: int, shifted: int
    ) -> None:
        """known, drafted: what the round's best trees were worth without and with the draft (`size`); predicted: tokens
        that the verified one predicted; tokens: committed; shifted: of them, those that shifted blocks put in.
        """
        kind, experience = "draft" if plan.blocks else "lookup", self.experience
        if predicted > 1:
            for sums, more in ((experience.predicted, predicted - 1), (experience.came, tokens - 1)):
                sums[kind] += more - SESSION_RATE * sums[kind]
            self.predicted[kind] += predicted - 1
            self.came[kind] += tokens - 1
        if plan.blocks > 1:
            self._average("shifted", float(shifted))
        if plan.blocks:
            others = self.worth["shifted"] if plan.blocks > 1 else 0.0  # which is in `drafted`, too
            self._average("baseline", max(drafted - known - others, 0.0))

    def took(self, tokens: int, seconds: float) -> None:
        """A round is over; without seconds nobody timed it."""
        if seconds:
            self.tokens += tokens - THROUGHPUT_RATE * self.tokens
            self.seconds += seconds - THROUGHPUT_RATE * self.seconds

    def _average(self, kind: str, worth: float) -> None:
        experience = self.experience
        experience.rounds_since_draft[kind] = 0
        self.seen[kind] += 1
        experience.seen[kind] += 1
        self.worth[kind] += max(RATE, 1 / (PRIOR_ROUNDS + self.seen[kind])) * (worth - self.worth[kind])
        step = max(SESSION_RATE, 1 / (PRIOR_ROUNDS + experience.seen[kind]))
        experience.worth[kind] += step * (worth - experience.worth[kind])

    def _note(self, name: str) -> None:
        """What pays is tried again soon after it stops; what doesn't, later and later."""
        probe_interval = self.experience.probe_interval
        paying = {"plain": (), "lookup": (), "baseline": ("baseline",)}.get(name, tuple(probe_interval))
        probe_interval.update(dict.fromkeys(paying, PROBE_INTERVAL))
