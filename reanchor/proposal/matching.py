"""Where a shifted block may join the baseline block: positions t with g(0)[t] == g(d)[0] (paper, 3.2 and
Table 6).
"""

from __future__ import annotations

import random

from reanchor.config import Attach


def sites(baseline: list[int], block: list[int]) -> list[int]:
    """All matching positions t of the baseline, in order."""
    return [t for t, token in enumerate(baseline) if token == block[0]]


def attachment_sites(
    rule: Attach, baseline: list[int], block: list[int], offset: int, rng: random.Random
) -> list[int]:
    """The positions the rule attaches the block at, at most one but for `all`; none drops the block."""
    if rule == "all":
        return sites(baseline, block)
    site = choose_site(rule, baseline, block, offset, rng)
    return [] if site is None else [site]


def choose_site(
    rule: Attach, baseline: list[int], block: list[int], offset: int, rng: random.Random
) -> int | None:
    """The position the rule attaches the block at; None drops the block."""
    found = sites(baseline, block)
    if not found:
        return None
    if rule == "earliest":
        return found[0]
    if rule == "fixed":
        return offset if offset in found else None
    if rule == "random":
        return rng.choice(found)
    if rule == "longest":
        return max(found, key=lambda t: (_agreement(baseline[t:], block), -t))
    raise ValueError(f"attach rule {rule!r} is not there: earliest, fixed, longest, random or all")


def _agreement(left: list[int], right: list[int]) -> int:
    """Length of the common prefix."""
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    return same
