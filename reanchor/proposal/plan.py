"""How much a round is given: nothing, a trie of what is known already, a drafted block, shifted blocks too.

The four are compared by the tokens they are expected to give beyond what their seconds would give at the pace of this
decode, whose length is given: time won in another is no use to it. The pace is an average over many rounds that begins
with some of plain decoding, as one lucky round must not make all else look slow. What a draft is worth is known only by
drafting, so it is an exponential average, renewed by a probe when it has not been seen for a while. Where the next
decode begins is what the decodes before it came to (`Experience`).
"""

from __future__ import annotations

from collections.abc import Sequence

from reanchor.core import Plan
from reanchor.proposal.costs import Costs, Growth
from reanchor.proposal.experience import PRIOR_WEIGHT, SOON

RATE = 0.1  # weight of the newest round within a decode
EARLY = 4.0  # rounds that what is known beforehand is worth: the first rounds weigh 1 / (EARLY + rounds)
SLOW = 0.03  # weight of the newest round in what later decodes begin with
PROBING = 0.02  # of the time at most goes into probes of one kind, however often they fail
PROBED = 4  # blocks of a probe at most: the first shifted blocks say what the others are worth
FIRST = 8.0  # rounds of plain decoding that the pace begins with
PACE_RATE = 0.05  # weight of the newest round in the pace


class Planner:
    """Chooses a plan each round of one decode from what was expected and what came of it."""

    def __init__(self, costs: Costs) -> None:
        self.costs, self.experience = costs, costs.experience
        self.worth = dict(self.experience.worth)
        self.seen = dict.fromkeys(self.worth, 0)  # rounds of this decode that drafted the kind
        self.promised = dict.fromkeys(
            self.experience.promised, PRIOR_WEIGHT
        )  # of this decode, and what came of it
        self.came = {kind: PRIOR_WEIGHT * self.experience.trust(kind) for kind in self.promised}
        self.tokens, self.seconds = FIRST, FIRST * costs.verify(1)  # of late, each round fading

    @property
    def pace(self) -> float:
        """Tokens that a second gives: the speed of late, at least that of plain decoding."""
        return max(1 / self.costs.verify(1), self.tokens / self.seconds)

    def choose(self, known: Sequence[float], shifts: int) -> Plan:
        """known: values of the trie that needs no draft, best first; shifts: shifted blocks there could be."""
        blocks = {"known": 0, "baseline": 1, **({"shifted": 1 + shifts} if shifts else {})}
        experience = self.experience
        for kind in experience.unseen:
            experience.unseen[kind] += 1
        for kind, rounds in experience.unseen.items():
            if kind in blocks and rounds > experience.patience[kind]:
                tried = min(blocks[kind], PROBED)
                rarely = self.costs.draft(tried) / (PROBING * self.costs.verify(1))
                experience.patience[kind] = min(2 * experience.patience[kind], max(SOON, round(rarely)))
                return Plan(kind, tried, "probe")
        net = self.size(known, "known")[0]
        worth, pace = self.worth, self.pace
        nets = {
            "plain": 1 - pace * self.costs.verify(1),  # first: where it is as good, it is chosen
            "known": net,
            "baseline": net + worth["baseline"] - pace * self.costs.draft(1),
        }
        if shifts:
            both = worth["baseline"] + worth["shifted"]
            nets["shifted"] = net + both - pace * self.costs.draft(1 + shifts)
        name = max(nets, key=lambda each: nets[each])
        self._note(name)
        return Plan(name, blocks.get(name, 0), "pays")

    def trust(self, kind: str) -> float:
        """The part of what is promised beyond the bonus that comes in this decode."""
        return self.came[kind] / self.promised[kind]

    def size(self, values: Sequence[float], kind: str, made: bool = False) -> tuple[float, int]:
        """(tokens beyond what its seconds are worth, the draft's apart; nodes) of the best beginning of a trie.
        made: is the trie there already?
        """
        trust = self.trust(kind)
        return self.costs.best_size([values[0], *(trust * value for value in values[1:])], self.pace, made)

    def growth(self, kind: str, most: int, made: bool = False) -> Growth:
        """Of a trie of at most so many nodes, as far as it can pay."""
        return Growth(self.costs, self.pace, self.trust(kind), most, made)

    def learn(
        self, plan: Plan, known: float, drafted: float, promised: float, tokens: int, shifted: int
    ) -> None:
        """known, drafted: what the round's best tries were worth without and with the draft (`size`); promised: tokens
        that the verified one promised; tokens: committed; shifted: of them, those that shifted blocks put in.
        """
        kind, experience = "drafted" if plan.blocks else "known", self.experience
        if promised > 1:
            for sums, more in ((experience.promised, promised - 1), (experience.came, tokens - 1)):
                sums[kind] += more - SLOW * sums[kind]
            self.promised[kind] += promised - 1
            self.came[kind] += tokens - 1
        if plan.blocks > 1:
            self._average("shifted", float(shifted))
        if plan.blocks:
            others = self.worth["shifted"] if plan.blocks > 1 else 0.0  # which is in `drafted`, too
            self._average("baseline", max(drafted - known - others, 0.0))

    def took(self, tokens: int, seconds: float) -> None:
        """A round is over; without seconds nobody timed it."""
        if seconds:
            self.tokens += tokens - PACE_RATE * self.tokens
            self.seconds += seconds - PACE_RATE * self.seconds

    def _average(self, kind: str, worth: float) -> None:
        experience = self.experience
        experience.unseen[kind] = 0
        self.seen[kind] += 1
        experience.seen[kind] += 1
        self.worth[kind] += max(RATE, 1 / (EARLY + self.seen[kind])) * (worth - self.worth[kind])
        step = max(SLOW, 1 / (EARLY + experience.seen[kind]))
        experience.worth[kind] += step * (worth - experience.worth[kind])

    def _note(self, name: str) -> None:
        """What pays is tried again soon after it stops; what doesn't, later and later."""
        patience = self.experience.patience
        paying = {"plain": (), "known": (), "baseline": ("baseline",)}.get(name, tuple(patience))
        patience.update(dict.fromkeys(paying, SOON))
