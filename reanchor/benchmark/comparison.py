"""Two runs of the same prompts, compared prompt by prompt with a paired test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reanchor.benchmark.bootstrap import paired_p_value
from reanchor.benchmark.record import Record
from reanchor.benchmark.report import ALL, fastest_plain, pace, totals


@dataclass(frozen=True)
class Contrast:
    """One method on one dataset in a first and a second run; ratios are second over first."""

    dataset: str
    temperature: float
    method: str
    prompts: int  # measured in both
    taus: tuple[float, float]
    tau_p: float  # that the mean difference of the prompts' acceptance lengths is zero
    speed_ratio: float  # tokens per second
    speed_p: float
    speedups: tuple[float, float] | None  # over plain decoding within each run
    speedup_p: float | None


def contrasts(first: Sequence[Record], second: Sequence[Record]) -> list[Contrast]:
    """Over what both runs measured. ValueError when that is nothing."""
    theirs = {each.key: each for each in second}
    pairs = [(each, theirs[each.key]) for each in first if each.key in theirs]
    if not pairs:
        raise ValueError("the two runs have no prompt in common; compare runs of the same datasets")
    groups: dict[tuple[str, float], list[tuple[Record, Record]]] = {}
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
    dataset: str, temperature: float, pairs: Sequence[tuple[Record, Record]], method: str
) -> Contrast:
    sides = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    taus = [per_prompt_tau(side, method) for side in sides]
    paces = [[log_pace(each, method) for each in side] for side in sides]
    plains = fastest_plain(sides[0]), fastest_plain(sides[1])
    ups = None
    if plains[0] and plains[1]:
        ups = [
            [log_pace(each, plain) - log_pace(each, method) for each in side]
            for side, plain in zip(sides, plains, strict=True)
            if plain
        ]
    return Contrast(
        dataset,
        temperature,
        method,
        len(pairs),
        (micro_tau(sides[0], method), micro_tau(sides[1], method)),
        paired_p_value(differences(taus)),
        pace(sides[0], method) / pace(sides[1], method),
        paired_p_value(differences(paces)),
        None
        if ups is None
        else (
            pace(sides[0], plains[0] or "") / pace(sides[0], method),
            pace(sides[1], plains[1] or "") / pace(sides[1], method),
        ),
        None if ups is None else paired_p_value(differences(ups)),
    )


def differences(sides: Sequence[Sequence[float]]) -> list[float]:
    return [right - left for left, right in zip(sides[0], sides[1], strict=True)]


def micro_tau(records: Sequence[Record], method: str) -> float:
    decoded, passes, _ = totals(records, method)
    return sum(decoded) / sum(passes) if sum(passes) else float("nan")


def per_prompt_tau(records: Sequence[Record], method: str) -> list[float]:
    return [
        decoded / passes if passes else 1.0
        for decoded, passes, _ in zip(*totals(records, method), strict=True)
    ]


def log_pace(record: Record, method: str) -> float:
    """Logarithm of seconds per token, so that ratios are compared."""
    value = pace([record], method)
    return math.log(value) if 0 < value < math.inf else 0.0
