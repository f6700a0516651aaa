"""Figures for machines: one JSON object, or CSV with a row a cell. A number that isn't one is null, or empty."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

from reanchor.benchmark import pass_latency
from reanchor.benchmark.ablations import ABLATIONS
from reanchor.benchmark.aggregation import Cell, cells
from reanchor.benchmark.comparison import Contrast
from reanchor.benchmark.findings import break_even, findings, gains, place_of
from reanchor.benchmark.results import Results

STAGES = ("draft", "assemble", "verify", "commit", "other")


def json_of(runs: Sequence[Results], found: Sequence[Contrast]) -> str:
    figures = {"runs": [run_object(each) for each in runs], "comparison": [vars(each) for each in found]}
    return json.dumps(finite(figures), ensure_ascii=False, allow_nan=False) + "\n"


def run_object(run: Results) -> dict[str, Any]:
    found, header = cells(run.records), run.header
    studied = ABLATIONS[header["ablation"]] if header.get("ablation") else None
    return {
        "file": str(run.path),
        "header": header,
        "total": run.total,
        "skipped": [vars(skip) for skip in run.skips],
        "cells": [{**each.to_dict(), **added(each)} for each in found],
        "gains": [vars(each) for each in gains(found)],
        "ablation": [vars(each) for each in findings(found, studied)] if studied else [],
        "costs": cost_rows(header["costs"]) if header.get("costs") else [],
        "differences": [
            {
                "dataset": record.dataset,
                "id": record.id,
                "temperature": record.temperature,
                **vars(difference),
            }
            for record in run.records
            for difference in record.differences
        ],
    }


def added(cell: Cell) -> dict[str, Any]:
    """What follows from a cell, and from its name in a sweep."""
    _, knob, value = place_of(cell.method) or (None, None, None)
    return {"break_even": break_even(cell), "knob": knob, "value": value}


def cost_rows(given: dict[str, Any]) -> list[dict[str, Any]]:
    measured = pass_latency.from_dict(given)
    return [
        {"nodes": nodes, "blocks": blocks, "break_even": measured.break_even(nodes, blocks)}
        for nodes in measured.verify
        for blocks in measured.draft
    ]


def finite(value: Any) -> Any:
    """The same with null for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value


def csv_of(runs: Sequence[Results]) -> str:
    """One header for all files; histograms and rates by position are in the JSON."""
    rows = [{"file": str(run.path), **flat(each)} for run in runs for each in cells(run.records)]
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["file"]
    writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(finite(rows))
    return text.getvalue()


def flat(cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in cell.to_dict().items():
        if name.endswith("_interval"):
            stem = name.removesuffix("_interval")
            row[f"{stem}_low"], row[f"{stem}_high"] = value or (None, None)
        elif name == "stage_seconds":
            row.update({f"{stage}_seconds": value.get(stage) for stage in STAGES})
        elif not isinstance(value, dict | list):
            row[name] = value
    counts = {f"count_{name}": count for name, count in cell.counts.items()}
    return {**row, **added(cell), **counts}
