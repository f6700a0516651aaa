"""Made-up runs, to be shown as tables, figures and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reanchor.benchmark.gate import Difference
from reanchor.benchmark.record import PromptRecord
from reanchor.benchmark.results import Results
from tests.benchmark.scripted import outcome_of, record_of


def results(records: list[PromptRecord], **header: Any) -> Results:
    known = {"target": "Qwen/Qwen3-4B", "drafter": "z-lab/Qwen3-4B-DFlash-b16", "dtype": "bfloat16"}
    return Results(Path("r.jsonl"), {**known, "methods": records[0].methods, **header}, records)


def record(
    methods: Sequence[str], lengths: Sequence[int] = (3, 1, 2), seconds: float = 0.3, **more: Any
) -> PromptRecord:
    plain = {name: outcome_of([1] * sum(lengths), 0.2) for name in methods if name in ("hf", "plain")}
    drafted = {name: outcome_of(list(lengths), seconds) for name in methods if name not in plain}
    return record_of(**more, **plain, **drafted)


def fault(method: str, kind: bool = True) -> Difference:
    return Difference(method, 0, 2, 0.123, 0.456, 0.0789, kind)


ROUNDS = {"DFlash": (1, 1, 1, 1), "in-block only": (2, 2), "extension only": (1, 1, 2), "full": (4,)}


def ablated(temperature: float, dataset: str, **rounds: Sequence[int]) -> PromptRecord:
    drafted = {name: outcome_of(list(lengths)) for name, lengths in (rounds or ROUNDS).items()}
    return record_of(dataset, "p0", temperature, plain=outcome_of([1] * 4, 0.2), **drafted)
