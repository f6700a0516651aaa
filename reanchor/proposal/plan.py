"""How much a round is given: nothing, a trie of what is known already, a drafted block, shifted blocks too.

The four are compared by expected tokens per second. What a draft would add to the trie is known only by drafting, so
its gain is an exponential average, renewed by a probe when it has not been seen for a while.
"""

from __future__ import annotations

from collections.abc import Sequence

from reanchor.core import Plan
from reanchor.proposal.costs import Costs

RATE = 0.1  # weight of the newest round in a gain
SOON, LATE = (
    8,
    64,
)  # rounds until a draft that doesn't pay is tried again, and the most after failing again and again
NAP = 2  # rounds of the first rest; each that follows at once is twice as long, up to LATE
PRIOR_GAIN = {"baseline": 1.0, "shifted": 0.05}  # tokens a round


class Planner:
    """Chooses a plan each round from what was expected and what came of it."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.gain, self.trust = dict(PRIOR_GAIN), 1.0
        self.unseen = dict.fromkeys(PRIOR_GAIN, 0)  # rounds since a draft of the kind
        self.patience = dict.fromkeys(PRIOR_GAIN, SOON)
        self.rest, self.nap = 0, NAP  # plain rounds left before anything is weighed again; the next rest

    def resting(self) -> bool:
        """A new round begins; is it to be plain without being weighed?"""
        for kind in self.unseen:
            self.unseen[kind] += 1
        self.rest = max(0, self.rest - 1)
        return self.rest > 0

    def choose(self, known: Sequence[float], shifts: int) -> Plan:
        """known: values of the trie that needs no draft, best first; shifts: shifted blocks there could be."""
        blocks = {"known": 0, "baseline": 1, **({"shifted": 1 + shifts} if shifts else {})}
        for kind, rounds in self.unseen.items():
            if kind in blocks and rounds > self.patience[kind]:
                self.patience[kind] = min(2 * self.patience[kind], LATE)
                return Plan(kind, blocks[kind], "probe")
        gain = self.trust * self.gain["baseline"]
        extra = {"known": 0.0, "baseline": gain, "shifted": gain + self.gain["shifted"]}
        rates = {"plain": 1 / self.costs.verify(1)}  # first: where it is as fast, it is chosen
        for name in blocks:
            rates[name] = self.costs.best_size(self.trusted(known), blocks[name], extra[name])[0]
        name = max(rates, key=lambda each: rates[each])
        self._note(name)
        return Plan(name, blocks.get(name, 0), "pays")

    def trusted(self, values: Sequence[float]) -> list[float]:
        """Values as experience corrects them; the bonus token is certain."""
        return [values[0], *(self.trust * value for value in values[1:])]

    def learn(self, plan: Plan, known: float, expected: float, tokens: int, from_shifted: int) -> None:
        """known, expected: tokens expected without and with the draft; tokens: committed; from_shifted: of them, those
        that shifted blocks put in.
        """
        if expected > 1:
            ratio = (tokens - 1) / (expected - 1)
            self.trust += RATE / 2 * (min(ratio, 4.0) - self.trust)
        if plan.blocks:
            self.unseen["baseline"] = 0
            self._average("baseline", max(expected - known, 0.0))
        if plan.blocks > 1:
            self.unseen["shifted"] = 0
            self._average("shifted", float(from_shifted))

    def _average(self, kind: str, gain: float) -> None:
        self.gain[kind] += RATE * (gain - self.gain[kind])

    def _note(self, name: str) -> None:
        """What pays is tried again soon after it stops; what doesn't, later and later."""
        if name == "plain":
            self.rest, self.nap = self.nap, min(2 * self.nap, LATE)
            return
        self.nap = NAP
        paying = {"known": (), "baseline": ("baseline",)}.get(name, tuple(self.patience))
        self.patience.update(dict.fromkeys(paying, SOON))
