"""How much a round is given: nothing, a trie of what is known already, a drafted block, shifted blocks too.

The four are compared by expected tokens per second. What a draft would add to the trie is known only by drafting, so
its gain is an exponential average, renewed by a probe when it has not been seen for a while.
"""

from __future__ import annotations

from collections.abc import Sequence

from reanchor.core import Plan
from reanchor.proposal.costs import Costs

RATE = 0.1  # weight of the newest round in a gain
SOON, LATE = 8, 64  # rounds until what doesn't pay is tried again, and the most after failing again and again
PRIOR_GAIN = {"baseline": 1.0, "shifted": 0.05}  # tokens a round


class Planner:
    """Chooses a plan each round from what was expected and what came of it."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.gain, self.trust = dict(PRIOR_GAIN), 1.0
        self.unseen = dict.fromkeys(PRIOR_GAIN, 0)  # rounds since a draft of the kind
        self.patience = {**dict.fromkeys(PRIOR_GAIN, SOON), "plain": SOON}
        self.rest = 0  # rounds left of plain decoding before anything is weighed again

    def resting(self) -> bool:
        self.rest = max(0, self.rest - 1)
        return self.rest > 0

    def choose(self, known: Sequence[float], shifts: int) -> Plan:
        """known: values of the trie that needs no draft, best first; shifts: blocks beyond the baseline there could be."""
        blocks = {"known": 0, "baseline": 1, **({"shifted": 1 + shifts} if shifts else {})}
        for kind in self.unseen.keys() & blocks.keys():
            self.unseen[kind] += 1
            if self.unseen[kind] > self.patience[kind]:
                self.patience[kind] = min(2 * self.patience[kind], LATE)
                return Plan(kind, blocks[kind], "probe")
        extra = {
            "known": 0.0,
            "baseline": self.gain["baseline"],
            "shifted": sum(self.gain.values()),
        }
        rates = {
            name: self.costs.best_size(self.trusted(known), blocks[name], extra[name])[0] for name in blocks
        }
        rates["plain"] = 1 / self.costs.verify(1)
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
            self.rest = self.patience["plain"]
            self.patience["plain"] = min(2 * self.rest, LATE)
        else:
            self.patience["plain"] = SOON
        if name in self.patience and name != "plain":
            self.patience[name] = SOON
