"""Findings over several cells: the gain of shifted blocks, means of an ablation, a sweep's knob and value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reanchor.benchmark import paper
from reanchor.benchmark.ablations import Ablation
from reanchor.benchmark.aggregation import ALL, Cell

MEAN = "mean"  # over the datasets, each counted once
SWEPT = re.compile(r"(\S+) (\w+)=(\S+)")


@dataclass(frozen=True)
class AblationResult:
    """A figure of a row of an ablation: a share, an acceptance length, or how much longer one is."""

    row: str
    dataset: str
    temperature: float
    value: float | None
    part: int | None = None  # the two counts that a share is made of
    of: int | None = None
    paper: str | None = None  # what the paper's text has for the mean


@dataclass(frozen=True)
class Gain:
    """How much more shifted blocks give than the baseline block alone, as parts of it."""

    dataset: str
    temperature: float
    tau: float | None
    speedup: float | None
    paper: str | None  # both, over four targets and eight sets


def break_even(cell: Cell) -> float | None:
    """The acceptance length at which this method's rounds, as long as they are, cost what plain decoding does."""
    return cell.tau / cell.speedup if cell.tau and cell.speedup else None


def place_of(name: str) -> tuple[str, str, str] | None:
    """Method, knob and value of a sweep's method; None for one that ran once."""
    found = SWEPT.fullmatch(name)
    return (found[1], found[2], found[3]) if found else None


def gains(found: Sequence[Cell]) -> list[Gain]:
    by = {(each.dataset, each.temperature, each.method): each for each in found}
    return [
        Gain(
            dataset,
            at,
            gain_over(ours.tau, theirs.tau),
            gain_over(ours.speedup, theirs.speedup),
            paper.GAIN.get(at),
        )
        for (dataset, at, method), ours in by.items()
        if method == "reanchor" and (theirs := by.get((dataset, at, "dflash"))) is not None
    ]


def gain_over(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs - 1 if ours and theirs else None


def findings(found: Sequence[Cell], ablation: Ablation) -> list[AblationResult]:
    """Row by row and temperature by temperature: every dataset, then their mean."""
    made: list[AblationResult] = []
    alone = [each for each in found if each.dataset != ALL]
    for temperature in dict.fromkeys(each.temperature for each in alone):
        these = [each for each in alone if each.temperature == temperature]
        rows = shares(these, ablation) if ablation.shares else lengths(these, ablation)
        for row in dict.fromkeys(each.row for each in rows):
            own = [each for each in rows if each.row == row]
            made += [*own, mean(own, ablation.paper.get(row) if temperature == paper.TEMPERATURE else None)]
    return made


def mean(own: Sequence[AblationResult], said: str | None) -> AblationResult:
    known = [each.value for each in own if each.value is not None]
    value = sum(known) / len(known) if known else None
    return AblationResult(own[0].row, MEAN, own[0].temperature, value, paper=said)


def shares(found: Sequence[Cell], ablation: Ablation) -> list[AblationResult]:
    made = []
    for share in ablation.shares:
        for each in found:
            if each.method == ablation.variants[0].name:
                part, of = each.counts.get(share.part, 0), each.counts.get(share.of, 0)
                value = part / of if of else None
                made.append(AblationResult(share.name, each.dataset, each.temperature, value, part, of))
    return made


def lengths(found: Sequence[Cell], ablation: Ablation) -> list[AblationResult]:
    base = {each.dataset: each.tau for each in found if each.method == ablation.against}
    made = []
    for variant in ablation.variants:
        for each in found:
            if each.method == variant.name:
                less = base[each.dataset] if ablation.against else 0.0
                value = None if each.tau is None or less is None else each.tau - less
                made.append(AblationResult(variant.name, each.dataset, each.temperature, value))
    return made
