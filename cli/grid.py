"""A table before it has a form: texts in rows, the best in **bold**; made into rich's table, Markdown or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Table

from reanchor.benchmark.report import Cell

BOLD = re.compile(r"\*\*(.+?)\*\*")


@dataclass
class Grid:
    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        self.rows.append(list(cells))

    def rich(self) -> Table:
        table = Table(title=escape(self.title), title_justify="left")
        for index, name in enumerate(self.columns):
            table.add_column(escape(name), justify="right" if index else "left", no_wrap=not index)
        for row in self.rows:
            table.add_row(*(BOLD.sub(r"[bold]\1[/bold]", escape(cell)) for cell in row))
        return table

    def markdown(self) -> str:
        lines = [
            f"**{self.title}**",
            "",
            line(self.columns),
            line(["---"] + ["--:"] * (len(self.columns) - 1)),
        ]
        return "\n".join([*lines, *(line(row) for row in self.rows)]) + "\n"


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def csv_of(cells: Sequence[Cell]) -> str:
    """A row a cell, every figure in a column of its own; histograms and rates by position are in the JSON."""
    rows = [flat(each) for each in cells]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
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
    return row


STAGES = ("draft", "assemble", "verify", "commit", "other")
