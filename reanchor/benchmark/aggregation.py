"""Aggregation of records into figures: one cell a dataset, temperature and method. It knows no table and no file.

tau is tokens committed per round, bonus included, over all rounds of all prompts. A speed-up is the ratio of
seconds per decoded token, prefill apart, against the faster way of plain decoding; where outputs are the same
that is the ratio of summed decode times. Intervals are bootstraps over prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from reanchor.benchmark.bootstrap import Interval, ratio_interval, speedup_interval
from reanchor.benchmark.outcome import Outcome
from reanchor.benchmark.record import PromptRecord
from reanchor.stats import Stats

PLAIN = ("hf", "plain")  # ways of plain decoding: HF's own generate, our loop without a drafter
ALL = "all"  # the datasets together


@dataclass(frozen=True)
class Cell:
    """Figures of one method on one dataset at one temperature; None where there is nothing to count."""

    dataset: str
    temperature: float
    method: str
    prompts: int
    tokens: int  # returned
    rounds: int
    tau: float | None
    tau_interval: Interval | None
    speedup: float | None  # None without plain decoding beside it, and where the gate found a fault
    speedup_interval: Interval | None
    plain: str | None  # which plain decoding it is measured against
    tokens_per_second: float | None
    seconds_to_first_token: float  # mean
    decode_seconds: float
    nodes_per_round: float | None
    blocks_per_round: float | None
    full_rounds: (
        float | None
    )  # share in which a block's worth of drafts was accepted, of rounds with room for it
    shifted_share: float | None
    stage_seconds: dict[str, float]
    peak_memory: int | None
    accuracy: float | None
    judged: int  # answers that could be judged
    cut: int  # answers that could not, since the token limit cut them
    ties: int
    faults: int
    counts: dict[str, int] = field(default_factory=dict)
    position_rates: list[float] = field(default_factory=list)
    histogram: dict[int, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def cells(records: Iterable[PromptRecord], intervals: bool = True) -> list[Cell]:
    """Every cell, those of all datasets together last when there are several."""
    groups: dict[tuple[str, float], list[PromptRecord]] = {}
    for each in records:
        groups.setdefault((each.dataset, each.temperature), []).append(each)
    if len({dataset for dataset, _ in groups}) > 1:
        for (_, temperature), found in list(groups.items()):
            groups.setdefault((ALL, temperature), []).extend(found)
    return [
        cell(dataset, temperature, found, method, intervals)
        for (dataset, temperature), found in groups.items()
        for method in found[0].methods
    ]


def cell(dataset: str, temperature: float, records: list[PromptRecord], method: str, intervals: bool) -> Cell:
    outcomes = [outcome for each in records for outcome in each.outcomes(method)]
    stats = folded(method, outcomes)
    figures = stats.to_dict(rounds=False)
    differences = [each for record in records for each in record.differences if each.method == method]
    faults = faults_of(records, method)
    decoded, passes, seconds = totals(records, method)
    plain = fastest_plain(records)
    given = plain is not None and not faults and sum(seconds) > 0 and sum(decoded) > 0
    right = [record.right[method] for record in records if method in record.right]
    memories = [each.memory for each in outcomes if each.memory is not None]
    counted = sum(passes) > 0
    return Cell(
        dataset=dataset,
        temperature=temperature,
        method=method,
        prompts=len(records),
        tokens=stats.tokens,
        rounds=int(sum(passes)),
        tau=sum(decoded) / sum(passes) if counted else None,
        tau_interval=ratio_interval(decoded, passes) if counted and intervals else None,
        speedup=speedup(records, plain, method) if given and plain else None,
        speedup_interval=paired_interval(records, plain, method) if given and plain and intervals else None,
        plain=plain,
        tokens_per_second=sum(decoded) / sum(seconds) if sum(seconds) else None,
        seconds_to_first_token=stats.time_to_first_token / len(outcomes),
        decode_seconds=sum(seconds),
        nodes_per_round=figures["nodes_per_round"],
        blocks_per_round=figures["blocks_per_round"],
        full_rounds=figures["full_rounds"],
        shifted_share=figures["shifted_share"],
        stage_seconds=figures["stage_seconds"] if stats.rounds else {},
        peak_memory=max(memories, default=None),
        accuracy=sum(right) / len(right) if right else None,
        judged=len(right),
        cut=sum(method in record.cut for record in records),
        ties=len(differences) - faults,
        faults=faults,
        counts=summed(outcomes),
        position_rates=figures["position_rates"],
        histogram=stats.histogram(),
    )


def folded(method: str, outcomes: Sequence[Outcome]) -> Stats:
    stats = Stats(method)
    for each in outcomes:
        stats.add(each.stats(method))
    return stats


def summed(outcomes: Sequence[Outcome]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in outcomes:
        for name, count in each.counts.items():
            counts[name] = counts.get(name, 0) + count
    return counts


def totals(records: Sequence[PromptRecord], method: str) -> tuple[list[float], list[float], list[float]]:
    """Tokens decoded, target passes and seconds, each [prompts]."""
    decoded = [float(sum(each.decoded for each in record.outcomes(method))) for record in records]
    passes = [float(sum(each.passes for each in record.outcomes(method))) for record in records]
    seconds = [sum(each.decode_seconds for each in record.outcomes(method)) for record in records]
    return decoded, passes, seconds


def throughput(records: Sequence[PromptRecord], method: str) -> float:
    """Seconds per decoded token."""
    decoded, _, seconds = totals(records, method)
    return sum(seconds) / sum(decoded) if sum(decoded) else float("inf")


def faults_of(records: Sequence[PromptRecord], method: str) -> int:
    return sum(each.fault for record in records for each in record.differences if each.method == method)


def fastest_plain(records: Sequence[PromptRecord]) -> str | None:
    """The strongest baseline of these records; a way of plain decoding with a fault is none."""
    there = [name for name in PLAIN if name in records[0].methods and not faults_of(records, name)]
    return min(there, key=lambda name: throughput(records, name)) if there else None


def speedup(records: Sequence[PromptRecord], plain: str, method: str) -> float:
    return throughput(records, plain) / throughput(records, method)


def paired_interval(records: Sequence[PromptRecord], plain: str, method: str) -> Interval | None:
    plain_decoded, _, plain_seconds = totals(records, plain)
    decoded, _, seconds = totals(records, method)
    return speedup_interval(plain_seconds, plain_decoded, seconds, decoded)
