"""Output of figures: tables on a terminal, or JSON, CSV or Markdown on stdout, and pictures into a folder."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console

from reanchor.benchmark.comparison import contrasts
from reanchor.benchmark.results import Results
from reanchor.files import named_path

from .console import say, write
from .data_table import DataTable
from .figures import csv_of, json_of
from .scoreboard import contrast_grid, grids

WIDTH = 200  # of tables that are not shown on a terminal


def emit(runs: Sequence[Results], form: str | None, plots: str | None) -> int:
    """Say what the runs show; the number of faults in them."""
    found = contrasts(runs[0].records, runs[1].records) if len(runs) == 2 else []
    if form == "json":
        write(json_of(runs, found))
    elif form == "csv":
        write(csv_of(runs))
    else:
        shown = [grid for each in runs for grid in grids(each, named=len(runs) > 1)]
        if found:
            shown.append(contrast_grid(found, (runs[0].path.name, runs[1].path.name)))
        emit_tables(shown, form == "markdown")
    if plots is not None:
        picture(runs, named_path(plots, "--plots"))
    return sum(each.fault for run in runs for record in run.records for each in record.differences)


def emit_tables(shown: Sequence[DataTable], markdown: bool) -> None:
    if markdown:
        write("\n".join(grid.markdown() for grid in shown))
        return
    screen = Console()
    paper = Console(
        file=StringIO(),
        highlight=False,
        force_terminal=screen.is_terminal,
        width=screen.width if screen.is_terminal else WIDTH,
    )
    for grid in shown:
        for part in grid.rich(paper.width, screen=screen.is_terminal):
            paper.print(part)
    write(paper.file.getvalue())  # type: ignore[attr-defined]


def picture(runs: Sequence[Results], folder: Path) -> None:
    from reanchor.benchmark.plots import draw_plots

    for each in runs:
        own = folder if len(runs) == 1 else folder / each.path.stem
        for path in draw_plots(each, own):
            say(f"drew {path}")
