"""Two runs of the same prompts, compared prompt by prompt with a paired test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reanchor.benchmark.aggregation import ALL, fastest_plain, faults_of, speedup, throughput, totals
from reanchor.benchmark.bootstrap import paired_p_value
from reanchor.benchmark.record import PromptRecord


@dataclass(frozen=True)
class Contrast:
    """One method on one dataset in a first and a second run; ratios are second over first."""

    dataset: str
    temperature: float
    method: str
    prompts: int  # measured in both
    taus: tuple[float, float]
    tau_p: float  # that the mean difference of the prompts' acceptance lengths is zero
    faults: tuple[int, int]  # with any, tokens per second of two outputs mean nothing: no speed is compared
    speed_ratio: float | None  # tokens per second
    speed_p: float | None
    speedups: tuple[float, float] | None  # over plain decoding within each run
    speedup_p: float | None


def contrasts(first: Sequence[PromptRecord], second: Sequence[PromptRecord]) -> list[Contrast]:
    """Over what both runs measured. ValueError when that is nothing."""
    theirs = {each.key: each for each in second}
    pairs = [(each, theirs[each.key]) for each in first if each.key in theirs]
    if not pairs:
        raise ValueError("the two runs have no prompt in common; compare runs of the same datasets")
    groups: dict[tuple[str, float], list[tuple[PromptRecord, PromptRecord]]] = {}
    for pair in pairs:
        groups.setdefault((pair[0].dataset, pair[0].temperature), []).append(pair)
    if len({dataset for dataset, _ in groups}) > 1:
        for (_, temperature), found in list(groups.items()):
            groups.setdefault((ALL, temperature), []).extend(found)
    return [
        contrast(dataset, temperature, found, method)
        for (dataset, temperature), found in groups.items()
        for method in found[0][0].methods
        if method in found[0][1].methods
    ]


def contrast(
    dataset: str, temperature: float, pairs: Sequence[tuple[PromptRecord, PromptRecord]], method: str
) -> Contrast:
    sides = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    taus = [per_prompt_tau(side, method) for side in sides]
    faults = faults_of(sides[0], method), faults_of(sides[1], method)
    given = not any(faults) and all(0 < throughput(side, method) < math.inf for side in sides)
    plains = fastest_plain(sides[0]), fastest_plain(sides[1])
    return Contrast(
        dataset,
        temperature,
        method,
        len(pairs),
        (micro_tau(sides[0], method), micro_tau(sides[1], method)),
        paired_p_value(differences(taus)),
        faults,
        throughput(sides[0], method) / throughput(sides[1], method) if given else None,
        paired_p_value(differences([log_paces(side, method) for side in sides])) if given else None,
        *speedups_of(sides, method, plains[0], plains[1] if given else None),
    )


def speedups_of(
    sides: tuple[list[PromptRecord], list[PromptRecord]], method: str, first: str | None, second: str | None
) -> tuple[tuple[float, float] | None, float | None]:
    """Over plain decoding `first` and `second` of the two runs, and p of their difference."""
    if first is None or second is None:
        return None, None
    gains = [
        differences([log_paces(side, method), log_paces(side, plain)])
        for side, plain in zip(sides, (first, second), strict=True)
    ]
    ups = speedup(sides[0], first, method), speedup(sides[1], second, method)
    return ups, paired_p_value(differences(gains))


def differences(sides: Sequence[Sequence[float]]) -> list[float]:
    return [right - left for left, right in zip(sides[0], sides[1], strict=True)]


def micro_tau(records: Sequence[PromptRecord], method: str) -> float:
    decoded, passes, _ = totals(records, method)
    return sum(decoded) / sum(passes) if sum(passes) else float("nan")


def per_prompt_tau(records: Sequence[PromptRecord], method: str) -> list[float]:
    return [
        decoded / passes if passes else 1.0
        for decoded, passes, _ in zip(*totals(records, method), strict=True)
    ]


def log_paces(records: Sequence[PromptRecord], method: str) -> list[float]:
    """Logarithms of every prompt's seconds per token, so that ratios are compared."""
    values = [throughput([each], method) for each in records]
    return [math.log(value) if 0 < value < math.inf else 0.0 for value in values]
