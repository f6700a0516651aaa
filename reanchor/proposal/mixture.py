"""What an edge of the tree is worth: the probability that the target takes it, its parent taken.

Sources that speak of the same parent are mixed: price(token) = sum of share(source) * chance(token), the shares of
those that have an opinion, and of `background`, adding up to one. The shares are learnt by depth as decoding goes on:
where the target chose y, a source earned the part of price(y) that came from it, and its share is an exponential
average of that. A target that always takes its favourite is surer than any mixture, so the prices of a parent's
children are sharpened: raised to a power, their sum kept; the power climbs the likelihood of what was chosen. What is
learnt is used from the next round on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from reanchor.proposal.sources import CandidateSet

# the background component gives every token this probability, so that a miss has a weight too
BACKGROUND, BACKGROUND_PROBABILITY = "background", 1e-3
# expectation maximisation over 24 recorded answers of the embedded pair: grade-school mathematics, instructions, code
PRIOR = {
    "recall 3": 0.395,
    "text 4": 0.181,
    "text 3": 0.155,
    "recall 2": 0.127,
    "baseline": 0.038,
    "recall 1": 0.033,
    "shifted": 0.029,
    "text 2": 0.024,
    BACKGROUND: 0.009,
    "text 1": 0.006,
    "verifier": 0.003,
}
UNKNOWN = 0.05  # share of a source without a prior
RATE = 0.02  # weight of the newest observation
LEAST = 1e-4  # a share can come back
MIN_JOINT = 1e-100  # of a price: a part and its powers stay numbers
SHARPNESS = 1.3  # the power at first where the target decodes greedily; 1 where it samples
SHARPEN_RATE, MAX_SHARPNESS = 0.01, 2.0  # its step, its bound; it is never below 1
BANDS = 4  # depths 0, 1, 2, and all deeper ones learn apart


class SourceMixture:
    """Shares by depth and source."""

    def __init__(self, rate: float = RATE, sampled: bool = False) -> None:
        self.rate, self.sharpness = rate, 1.0 if sampled else SHARPNESS
        self.shares = [dict(PRIOR) for _ in range(BANDS)]

    def of(self, claims: Sequence[CandidateSet], depth: int) -> list[tuple[float, int, int]]:
        """(price, token, origin) of every token named, dearest first; the origin that of the largest part."""
        prices, largest = self._mixed(claims, depth)
        powers = {token: price**self.sharpness for token, price in prices.items()}
        scale = sum(prices.values()) / (sum(powers.values()) or 1.0)
        return sorted(
            ((scale * power, token, largest[token][1]) for token, power in powers.items()), reverse=True
        )

    def learn(self, claims: Sequence[CandidateSet], depth: int, chosen: int) -> None:
        """The target chose `chosen` at a node of the accepted path, of whose children `claims` spoke."""
        self._learn_sharpness(self._mixed(claims, depth)[0], chosen)
        shares = self._present(claims, depth)
        parts = [share * claim.chances.get(chosen, 0.0) for claim, share in zip(claims, shares, strict=False)]
        parts.append(shares[-1] * BACKGROUND_PROBABILITY)
        total, earned = sum(shares), sum(parts)
        names = [*(claim.source for claim in claims), BACKGROUND]
        band = self.shares[min(depth, BANDS - 1)]
        earnings: dict[str, list[float]] = {}  # shifted blocks may speak of one node together
        for name, share, part in zip(names, shares, parts, strict=True):
            earnings.setdefault(name, []).append((1 - self.rate) * share + self.rate * total * part / earned)
        for name, each in earnings.items():
            band[name] = max(LEAST, sum(each) / len(each))

    def _learn_sharpness(self, prices: Mapping[int, float], chosen: int) -> None:
        """One step up the log-likelihood of the choice among the tokens named."""
        if chosen not in prices:
            return
        powers = {token: price**self.sharpness for token, price in prices.items()}
        mean = sum(powers[token] * math.log(prices[token]) for token in prices) / sum(powers.values())
        step = SHARPEN_RATE * (math.log(prices[chosen]) - mean)
        self.sharpness = min(max(self.sharpness + step, 1.0), MAX_SHARPNESS)

    def _mixed(
        self, claims: Sequence[CandidateSet], depth: int
    ) -> tuple[dict[int, float], dict[int, tuple[float, int]]]:
        """The mixture at every token named, and the largest part of each with its origin."""
        shares = self._present(claims, depth)
        total = sum(shares)
        prices: dict[int, float] = {}
        largest: dict[int, tuple[float, int]] = {}
        for claim, share in zip(claims, shares, strict=False):
            for token, chance in claim.chances.items():
                part = share * chance / total
                if part < MIN_JOINT:  # its chance was rounded to nothing, or nearly
                    continue
                if token not in prices:
                    prices[token], largest[token] = part, (part, claim.origin)
                    continue
                prices[token] += part
                if (part, claim.origin) > largest[token]:
                    largest[token] = (part, claim.origin)
        return prices, largest

    def _present(self, claims: Sequence[CandidateSet], depth: int) -> list[float]:
        """Shares of the claims, and last that of background."""
        band = self.shares[min(depth, BANDS - 1)]
        return [*(band.get(claim.source, UNKNOWN) for claim in claims), band[BACKGROUND]]
