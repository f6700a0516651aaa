"""Figures as texts of a table: a number without its interval, one with it, the best of rivals in bold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from reanchor.benchmark.aggregation import Cell

from .summary import number

SHOWN = {"hf": "plain (HF)", "plain": "plain (ours)"}


def shown(method: str) -> str:
    return SHOWN.get(method, method)


def entry(cell: Cell, rivals: Sequence[Cell], tau: Callable[[Cell], float | None]) -> str:
    """Acceptance length, or what stands for it, and speed."""
    length = best(cell, rivals, tau, number(tau(cell)))
    return f"{length} / {best(cell, rivals, lambda each: each.speedup, speed(cell))}"


def best(cell: Cell, rivals: Sequence[Cell], figure: Callable[[Cell], float | None], text: str) -> str:
    values = [value for each in rivals if (value := figure(each)) is not None]
    return f"**{text}**" if values and figure(cell) == max(values) else text


def speed(cell: Cell) -> str:
    """A method that gave other tokens than plain decoding has no speed."""
    if cell.faults:
        return f"{cell.faults} fault{'s' if cell.faults > 1 else ''}"
    return "–" if cell.speedup is None else f"{cell.speedup:.2f}×"


def spread(interval: Any) -> str:
    """Half the width of an interval."""
    return "" if interval is None else f" ±{(interval[1] - interval[0]) / 2:.2f}"
