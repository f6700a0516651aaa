"""A table before it has a form: texts in rows, the best in **bold**; made into Markdown, or into tables of a width."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

BOLD = re.compile(r"\*\*(.+?)\*\*")
GAP = 2  # between two columns
NARROWEST = 8  # that a text is folded to


@dataclass
class DataTable:
    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    keys: int = 1  # first columns that say what a row is
    most: int | None = None  # rows that a screen is given

    def add(self, *cells: str) -> None:
        self.rows.append(list(cells))

    def rich(self, width: int, screen: bool = False) -> Iterator[RenderableType]:
        """As many columns in a table as the width has room for, the others in tables below it, each behind what says
        which row it is. Nothing is cut off; a text that is too long goes on in the next line.
        """
        rows = self.rows[: self.most] if screen else self.rows
        notes = list(self.notes)
        if len(rows) < len(self.rows):
            notes.append(f"… and {len(self.rows) - len(rows)} more rows; --markdown and --json have all")
        yield Text(self.title, style="bold")
        widths = self.widths(rows, width)
        for chosen in chunks(widths, self.keys, width):
            yield self.table(rows, chosen, widths)
            yield ""
        yield from (Text(note, style="italic") for note in notes)
        yield from [""] * bool(notes)

    def widths(self, rows: Sequence[Sequence[str]], whole: int) -> list[int]:
        """What each column needs: its longest cell, and its name, in one line only where there is room for all."""
        cells = [max(map(shown, column), default=0) for column in zip(*rows, strict=True)] or [0] * len(
            self.columns
        )
        named = list(zip(cells, self.columns, strict=True))
        found = [max(each, cell_len(name)) for each, name in named]
        if sum(found) + GAP * (len(found) - 1) <= whole:
            return found
        found = [max([each, *map(cell_len, name.split())]) for each, name in named]
        most = max(NARROWEST, whole // (self.keys + 1) - GAP)  # leave room for a figure beside the keys
        found[: self.keys] = [min(each, most) for each in found[: self.keys]]
        room = max(NARROWEST, whole - sum(each + GAP for each in found[: self.keys]))
        return [min(each, room) for each in found]

    def table(self, rows: Sequence[Sequence[str]], chosen: Sequence[int], widths: Sequence[int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
        for index in chosen:
            side = "right" if index >= self.keys else "left"
            table.add_column(escape(self.columns[index]), justify=side, width=widths[index], overflow="fold")  # type: ignore[arg-type]
        for row in rows:
            table.add_row(*(BOLD.sub(r"[bold]\1[/bold]", escape(row[index])) for index in chosen))
        return table

    def markdown(self) -> str:
        kinds = ["---"] * self.keys + ["--:"] * (len(self.columns) - self.keys)
        lines = [f"**{self.title}**", "", line(self.columns), line(kinds), *(line(row) for row in self.rows)]
        return "\n".join([*lines, *(part for note in self.notes for part in ("", note))]) + "\n"


def shown(cell: str) -> int:
    """Its width without the marks of bold."""
    return cell_len(BOLD.sub(r"\1", cell))


def chunks(widths: Sequence[int], keys: int, width: int) -> list[list[int]]:
    """Columns of every table: the keys, and as many others as there is room for, at least one."""
    used = sum(widths[:keys]) + GAP * (keys - 1)
    made: list[list[int]] = [[]]
    room = width - used
    for index in range(keys, len(widths)):
        if widths[index] + GAP > room and made[-1]:
            made.append([])
            room = width - used
        room -= widths[index] + GAP
        made[-1].append(index)
    return [[*range(keys), *others] for others in made]


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
