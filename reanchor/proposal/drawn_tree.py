"""A tree whose tokens are drawn from the drafter, so that it can be judged by rejection: numbers only.

A node's children are drawn one after another without replacement, and the target trees them in that order. For that to
be exact, whether a node gets another child may depend on distributions and on what was drawn before, never on the token
about to be drawn. So a place is priced by what is known of it beforehand: how sure the drafter is at that depth, and
how many siblings come before.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import replace

from reanchor.core import BASELINE, Draft, Tree, VerifyResult
from reanchor.proposal.tree_builder import TreeBuilder

KEPT = 32  # candidates at every position that can be drawn
BANDS = (
    0.15,
    0.3,
    0.5,
    0.75,
)  # of the likeliest candidate's probability; the places within one learn together
COOLING = 2.5  # the power of the drafter's probabilities: more tokens of the likeliest, fewer of the tail
PRIOR = (  # acceptance of the first, second, third and later siblings, as the embedded pair's was at temperature 1
    (0.12, 0.04, 0.03, 0.01),
    (0.14, 0.05, 0.04, 0.01),
    (0.15, 0.06, 0.05, 0.01),
    (0.17, 0.11, 0.04, 0.02),
    (0.43, 0.19, 0.13, 0.05),
)
RATE = 0.02  # weight of the newest observation


class SiblingAcceptance:
    """How often a sibling is accepted, all before it rejected: by the drafter's certainty and its rank."""

    def __init__(self) -> None:
        self.rates = [list(band) for band in PRIOR]

    def of(self, surest: float, rank: int) -> float:
        band = self.rates[sum(surest > bound for bound in BANDS)]
        return band[min(rank, len(band) - 1)]

    def learn(self, surest: float, rank: int, accepted: bool) -> None:
        band = self.rates[sum(surest > bound for bound in BANDS)]
        rank = min(rank, len(band) - 1)
        band[rank] += RATE * (accepted - band[rank])

    def learn_all(self, tree: Tree, result: VerifyResult, chances: Sequence[Sequence[float]]) -> None:
        """From every sibling that was tried in a round. chances: [K][k], best first"""
        for node, token in zip(result.path, result.tokens, strict=True):
            siblings = [child for child, parent in enumerate(tree.parents) if parent == node]
            for rank, child in enumerate(siblings):
                accepted = tree.tokens[child] == token  # a rejected token is never drawn in its place
                self.learn(chances[tree.depths[node]][0], rank, accepted)
                if accepted:
                    break


def sharpen_draft(draft: Draft) -> Draft:
    """The draft with its distributions sharpened and cut to their likeliest tokens, which are its candidates then."""
    assert draft.distribution is not None
    chances, tokens = draft.distribution.topk(min(KEPT, draft.distribution.shape[-1]))  # [K, k]
    chances = chances**COOLING
    chances = chances / chances.sum(-1, keepdim=True)
    cut = draft.distribution.new_zeros(draft.distribution.shape).scatter_(-1, tokens, chances)
    return replace(draft, candidates=tokens[None], log_probs=chances.log()[None], distribution=cut)


def grow_by_draws(
    builder: TreeBuilder,
    candidates: Sequence[Sequence[int]],
    chances: Sequence[Sequence[float]],
    acceptance: SiblingAcceptance,
    rng: random.Random,
) -> None:
    """Fill the likeliest places until the budget or the candidates are spent. candidates, chances: [K][k]"""
    deepest = len(candidates) if builder.max_depth is None else min(len(candidates), builder.max_depth)
    left = [dict(zip(*row, strict=True)) for row in zip(candidates, chances, strict=True)]
    left = [{token: chance for token, chance in row.items() if chance > 0} for row in left]
    urns: dict[int, dict[int, float]] = {}  # parent -> what was not drawn yet
    places: list[
        tuple[float, int, int, float]
    ] = []  # (minus value, parent, rank, chance to come to be tried)

    def offer(parent: int, rank: int, tried: float) -> None:
        if urns[parent]:
            value = tried * acceptance.of(chances[builder.depths[parent]][0], rank)
            heapq.heappush(places, (-value, parent, rank, tried))

    def settle(node: int, value: float) -> None:
        if builder.depths[node] < deepest:
            urns[node] = dict(left[builder.depths[node]])
            offer(node, 0, value)

    settle(0, 1.0)
    while places and (builder.max_nodes is None or len(builder.tokens) < builder.max_nodes):
        value, parent, rank, tried = heapq.heappop(places)
        urn = urns[parent]
        token = rng.choices(list(urn), list(urn.values()))[0]
        del urn[token]
        settle(builder.add(parent, token, BASELINE), -value)
        offer(parent, rank + 1, tried + value)
