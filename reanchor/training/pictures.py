"""Diagnostics of carried rows as pictures; it needs matplotlib, imported here at first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reanchor.training.diagnostics import CORRELATION, Rows


def draw_analysis(tables: Mapping[str, Rows], folder: Path) -> list[Path]:
    """One PNG a table that holds anything."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, rows in tables.items():
        if not rows:
            continue
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        PICTURES[name](figure, rows)
        figure.savefig(folder / f"{name}.png", dpi=120)
        drawn.append(folder / f"{name}.png")
    return drawn


def recall(figure: Any, rows: Rows) -> None:
    for axes, measure in zip(figure.subplots(1, 2), ("recall_1", "recall_16"), strict=True):
        for place, variant in enumerate(dict.fromkeys(row["variant"] for row in rows)):
            own = [row for row in rows if row["variant"] == variant]
            axes.errorbar(
                [row["position"] + 0.1 * place for row in own],  # side by side
                [row[measure] for row in own],
                [row[f"{measure}_error"] for row in own],
                label=variant,
                capsize=2,
            )
        axes.set_ylim(0, 1)
        axes.set(xlabel="draft position", ylabel=measure.replace("_", "@"))
        axes.legend()


def reconvergence(figure: Any, rows: Rows) -> None:
    axes = figure.subplots()
    axes.bar([row["R"] for row in rows], [row["gain"] for row in rows])
    axes.set(xlabel="re-converged positions R", ylabel="drafts accepted, on less off")


def datasets(figure: Any, rows: Rows) -> None:
    axes = figure.subplots()
    for row in rows:
        if row["dataset"] != CORRELATION:
            axes.scatter(row["R"], row["gain"])
            axes.annotate(row["dataset"], (row["R"], row["gain"]))
    axes.set(xlabel="re-converged positions a rejected round", ylabel="drafts accepted, on less off")


def ceiling(figure: Any, rows: Rows) -> None:
    axes = figure.subplots()
    positions = rows[:-1]  # the last row holds no share
    for name in ("drafter", "branch", "either"):
        axes.plot(
            [row["position"] for row in positions], [row[name] for row in positions], marker="o", label=name
        )
    axes.set(xlabel="draft position", ylabel="right, after a right start")
    axes.legend()


def over_baseline(figure: Any, rows: Rows) -> None:
    axes = figure.subplots()
    for row in rows:
        if row["dataset"] != CORRELATION:
            axes.scatter(row["R"], 100 * row["gain"])
            axes.annotate(row["dataset"], (row["R"], 100 * row["gain"]))
    axes.set(
        xlabel="re-converged positions over the baseline's acceptance length",
        ylabel="gain in acceptance length, %",
    )


def attention(figure: Any, rows: Rows) -> None:
    axes = figure.subplots()
    axes.bar([str(row["states"]) for row in rows], [row["mass"] for row in rows])
    axes.set(xlabel="rejected states", ylabel="share of attention on carried rows")


def carried(figure: Any, rows: Rows) -> None:
    axes = figure.subplots()
    kinds = [name for name in rows[0] if name not in ("dataset", "prompts")]
    for place, kind in enumerate(kinds):
        shift = (place - (len(kinds) - 1) / 2) / (len(kinds) + 1)
        at = [number + shift for number in range(len(rows))]
        axes.bar(at, [row[kind] for row in rows], 1 / (len(kinds) + 1), label=kind)
    axes.set_xticks(range(len(rows)), [row["dataset"] for row in rows])
    axes.set(ylabel="acceptance length")
    axes.legend()


PICTURES: dict[str, Callable[[Any, Rows], None]] = {
    "recall": recall,
    "reconvergence": reconvergence,
    "datasets": datasets,
    "ceiling": ceiling,
    "normalised": over_baseline,
    "attention": attention,
    "carried": carried,
}
