"""The loss and acceptance of a run as a picture; it reads the log and knows nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAMES = {
    "tau": "decoded, held out",
    "matched_on": "same anchors, carried rows on",
    "matched_off": "same anchors, carried rows off",
}


def read(log: Path) -> list[dict[str, Any]]:
    """A log's records; without the line that a run was stopped in."""
    found: list[dict[str, Any]] = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def evaluated(records: list[dict[str, Any]]) -> set[int]:
    """Steps after which the drafter was evaluated."""
    return {record["step"] for record in records if record.get("evaluation")}


def smooth(values: list[float], share: float = 0.02) -> list[float]:
    """A running mean that forgets slowly."""
    found, mean = [], values[0]
    for place, value in enumerate(values):
        mean += max(share, 1 / (place + 1)) * (value - mean)
        found.append(mean)
    return found


def draw_curves(log: Path, picture: Path) -> None:
    """Loss left, tokens a round right, both by step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = read(log)
    steps = [record for record in records if "loss" in record]
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    if steps:
        places = [record["step"] for record in steps]
        left.plot(places, [record["loss"] for record in steps], color="0.8", linewidth=0.7)
        left.plot(places, smooth([record["loss"] for record in steps]))
        right.plot(
            places, smooth([record["tokens_a_round"] for record in steps]), label="training", color="0.6"
        )
    for name, label in NAMES.items():
        points = [(record["step"], record[name]) for record in records if name in record]
        if points:
            right.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    left.set(xlabel="step", ylabel="weighted loss")
    right.set(xlabel="step", ylabel="tokens a round, bonus included")
    if right.get_legend_handles_labels()[0]:
        right.legend()
    figure.savefig(picture, dpi=120)
