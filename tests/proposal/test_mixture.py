"""Prices against a synthetic target of known acceptance."""

from __future__ import annotations

import math
import random

import pytest

from reanchor.core import BASELINE, RECALL
from reanchor.proposal.mixture import BACKGROUND, LEAST, MAX_SHARPNESS, SourceMixture
from reanchor.proposal.sources import CandidateSet


def claims(*named):
    return [CandidateSet(source, origin, chances) for source, origin, chances in named]


def world(rng: random.Random, baseline: float, recall: float):
    """Claims on two tokens each, and the target's choice: the baseline's, recall's, or something else."""
    tokens = rng.sample(range(100), 4)
    said = claims(
        ("baseline", BASELINE, {tokens[0]: 0.7, tokens[1]: 0.3}),
        ("recall 1", RECALL, {tokens[2]: 0.7, tokens[3]: 0.3}),
    )
    who = rng.choices((0, 2, None), (baseline, recall, 1 - baseline - recall))[0]
    return said, 999 if who is None else tokens[who + (rng.random() < 0.3)]


@pytest.mark.parametrize("baseline, recall", [(0.7, 0.1), (0.1, 0.7), (0.3, 0.3)])
def test_shares_converge_on_what_each_source_is_worth(baseline, recall):
    rng, prices = random.Random(0), SourceMixture(rate=0.01)
    errors = []
    for step in range(3000):
        said, chosen = world(rng, baseline, recall)
        if step >= 2000:
            priced = {token: price for price, token, _ in prices.of(said, 1)}
            errors.append([priced[token] for claim in said for token in claim.chances])
        prices.learn(said, 1, chosen)
    means = [sum(column) / len(errors) for column in zip(*errors, strict=True)]
    truth = [baseline * 0.7, baseline * 0.3, recall * 0.7, recall * 0.3]
    assert means == pytest.approx(truth, abs=0.05)


def test_what_no_one_saw_learns_nothing():
    prices = SourceMixture()
    before = [dict(band) for band in prices.shares]
    prices.learn([], 0, 5)
    assert prices.shares == before


def test_depths_learn_apart_and_a_share_can_come_back():
    prices = SourceMixture(rate=0.2)
    said = claims(("baseline", BASELINE, {1: 1.0}), ("recall 1", RECALL, {2: 1.0}))
    for _ in range(200):
        prices.learn(said, 0, 2)
    assert prices.of(said, 0)[0][1] == 2 and prices.shares[3] == SourceMixture().shares[3]
    assert prices.shares[0]["baseline"] == LEAST
    for _ in range(200):
        prices.learn(said, 0, 1)
    assert prices.of(said, 0)[0][1] == 1


@pytest.mark.parametrize("right", [0, 1])
def test_blocks_that_speak_together_earn_one_share(right):
    """Two shifted blocks at one node: half of what is right is named by either, whichever speaks last."""
    rng, prices = random.Random(0), SourceMixture(rate=0.01, sampled=True)
    said = claims(("shifted", 1, {1: 1.0}), ("shifted", 2, {2: 1.0}), ("baseline", BASELINE, {3: 1.0}))
    shares = []
    for step in range(4000):
        prices.learn(said, 0, 1 + right if rng.random() < 0.6 else 3)
        if step >= 2000:
            band = prices.shares[0]
            shares.append(band["shifted"] / (2 * band["shifted"] + band["baseline"] + band[BACKGROUND]))
    assert sum(shares) / len(shares) == pytest.approx(0.3, abs=0.03)


def test_one_token_named_twice_costs_the_sum_and_prices_stay_below_one():
    prices = SourceMixture()
    prices.sharpness = 1.0
    for band in prices.shares:
        band.update({"baseline": 0.2, "recall 1": 0.2, BACKGROUND: 0.1})
    said = claims(("baseline", BASELINE, {1: 0.5, 2: 0.5}), ("recall 1", RECALL, {1: 1.0}))
    assert [(price, token, origin) for price, token, origin in prices.of(said, 0)] == [
        (pytest.approx(0.6), 1, RECALL),
        (pytest.approx(0.2), 2, BASELINE),
    ]
    assert math.fsum(price for price, _, _ in prices.of(said, 0)) < 1


def test_sharper_prices_have_the_same_sum():
    said, prices = claims(("baseline", BASELINE, {1: 0.6, 2: 0.3})), SourceMixture()
    prices.sharpness = 1.0
    (first, *_), (second, *_) = prices.of(said, 0)
    prices.sharpness = 2.0
    (sharper, *_), (duller, *_) = prices.of(said, 0)
    assert sharper + duller == pytest.approx(first + second)
    assert (first / second, sharper / duller) == pytest.approx((2, 4))


def test_sharpness_follows_how_the_target_chooses():
    """A target that always takes the favourite, and one that draws as the source says."""
    rng, said = random.Random(0), claims(("baseline", BASELINE, {1: 0.6, 2: 0.4}))
    greedy, drawing = SourceMixture(), SourceMixture()
    for _ in range(2000):
        greedy.learn(said, 0, 1)
        drawing.learn(said, 0, 1 if rng.random() < 0.6 else 2)
    assert greedy.sharpness == MAX_SHARPNESS and drawing.sharpness < 1.2
    named = drawing.of(said, 0)
    assert [token for _, token, _ in greedy.of(said, 0)] == [token for _, token, _ in named] == [1, 2]
    assert math.fsum(price for price, *_ in greedy.of(said, 0)) < 1
