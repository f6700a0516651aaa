"""Intervals and a paired test by resampling prompts; numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
PERMUTATIONS = 10000
INSTALL = "pip install 'reanchor-decoding[bench]'"


class Interval(NamedTuple):
    low: float
    high: float


def interval(values: np.ndarray) -> Interval:
    """The middle 95 % of resampled values; a resample without a single round has none."""
    low, high = np.nanquantile(values, [0.025, 0.975])
    return Interval(float(low), float(high))


def resamples(count: int, seed: int = 0) -> np.ndarray:
    """Indices of prompts drawn with replacement: [RESAMPLES, count]"""
    return np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], seed: int = 0
) -> Interval | None:
    """95 % interval of sum(numerators) / sum(denominators), prompts resampled; one prompt tells nothing."""
    if len(numerators) < 2:
        return None
    drawn = resamples(len(numerators), seed)
    above, below = np.asarray(numerators, float)[drawn].sum(1), np.asarray(denominators, float)[drawn].sum(1)
    return interval(np.divide(above, below, out=np.full(RESAMPLES, np.nan), where=below > 0))


def speedup_interval(
    plain_seconds: Sequence[float],
    plain_tokens: Sequence[float],
    seconds: Sequence[float],
    tokens: Sequence[float],
    seed: int = 0,
) -> Interval | None:
    """95 % interval of the ratio of seconds per token, the same prompts drawn for both sides."""
    if len(seconds) < 2:
        return None
    drawn = resamples(len(seconds), seed)
    sums = [np.asarray(each, float)[drawn].sum(1) for each in (plain_seconds, plain_tokens, seconds, tokens)]
    above, below = sums[0] * sums[3], sums[1] * sums[2]
    return interval(np.divide(above, below, out=np.full(RESAMPLES, np.nan), where=below > 0))


def paired_p_value(differences: Sequence[float], seed: int = 0) -> float:
    """Two-sided sign-flip test that paired differences have mean zero; exact where all sign patterns are few."""
    values = np.asarray(differences, float)
    if len(values) < 2 or not np.any(values):
        return 1.0
    try:
        from scipy.stats import permutation_test
    except ImportError as error:
        raise ValueError(f"comparing two runs needs scipy: {INSTALL}") from error
    options = {"permutation_type": "samples", "n_resamples": PERMUTATIONS, "rng": seed}
    return float(permutation_test((values,), np.mean, vectorized=True, **options).pvalue)
