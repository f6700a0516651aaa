"""Figures of a run as tables: the papers' own shape, and one with everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from reanchor.benchmark.report import Cell

from .summary import number, percent

SHOWN = {"hf": "plain (HF generate)", "plain": "plain (our loop)"}


def main_table(cells: Sequence[Cell], temperature: float, title: str) -> Table:
    """Datasets across, methods down, tau / speed-up in every cell, the best in bold."""
    chosen = [each for each in cells if each.temperature == temperature]
    datasets = list(dict.fromkeys(each.dataset for each in chosen))
    table = Table(title=f"{title}, T={temperature:g}: τ / speed-up over plain", title_justify="left")
    table.add_column("method", no_wrap=True)
    for dataset in datasets:
        table.add_column(dataset, justify="right")
    for method in dict.fromkeys(each.method for each in chosen):
        row = [SHOWN.get(method, method)]
        for dataset in datasets:
            found = [each for each in chosen if each.dataset == dataset]
            one = next((each for each in found if each.method == method), None)
            row.append("" if one is None else entry(one, found))
        table.add_row(*row)
    return table


def entry(cell: Cell, rivals: Sequence[Cell]) -> str:
    tau = best(cell, rivals, lambda each: each.tau, f"{number(cell.tau)}{spread(cell.tau_interval)}")
    if cell.faults:
        return f"{tau} / [red]{cell.faults} fault{'s' if cell.faults > 1 else ''}[/red]"
    shown = f"{number(cell.speedup)}×{spread(cell.speedup_interval)}"
    return f"{tau} / {best(cell, rivals, lambda each: each.speedup, shown)}"


def best(cell: Cell, rivals: Sequence[Cell], figure: Callable[[Cell], float | None], text: str) -> str:
    values = [value for each in rivals if (value := figure(each)) is not None]
    return f"[bold]{text}[/bold]" if values and figure(cell) == max(values) else text


def spread(interval: Any) -> str:
    """Half the width of an interval."""
    return "" if interval is None else f" ±{(interval[1] - interval[0]) / 2:.2f}"


def detail_table(cells: Sequence[Cell], dataset: str, temperature: float) -> Table:
    """Everything else about one dataset: methods down."""
    table = Table(title=f"{dataset}, T={temperature:g}", title_justify="left")
    columns = {
        "method": lambda each: SHOWN.get(each.method, each.method),
        "prompts": lambda each: str(each.prompts),
        "tokens": lambda each: str(each.tokens),
        "tokens/s": lambda each: number(each.tokens_per_second, 1),
        "TTFT ms": lambda each: number(each.seconds_to_first_token * 1000, 0),
        "nodes": lambda each: number(each.nodes_per_round, 1),
        "blocks": lambda each: number(each.blocks_per_round, 1),
        "full rounds": lambda each: percent(each.full_rounds),
        "draft/assemble/verify/commit/other": lambda each: stages(each.stage_seconds),
        "peak MB": lambda each: "–" if each.peak_memory is None else f"{each.peak_memory / 1e6:.0f}",
        "right answers": right,
        "ties/faults": lambda each: f"{each.ties}/{each.faults}",
    }
    for name in columns:
        table.add_column(name, justify="left" if name == "method" else "right")
    for each in cells:
        if (each.dataset, each.temperature) == (dataset, temperature):
            table.add_row(*(column(each) for column in columns.values()))
    return table


def stages(seconds: dict[str, float]) -> str:
    total = sum(seconds.values())
    return " ".join(percent(value / total) for value in seconds.values()) if total else "–"


def right(cell: Cell) -> str:
    return "not judged" if cell.accuracy is None else f"{cell.accuracy:.0%} of {cell.judged}"
