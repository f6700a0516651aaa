"""How far a long run is, with the figures so far."""

from __future__ import annotations

from typing import Any

from rich import progress

from reanchor.benchmark.report import PLAIN, cells
from reanchor.benchmark.results import Results

from .console import console


class Progress:
    """A bar on stderr over the prompts of a run."""

    def __init__(self, total: int, results: Results) -> None:
        self.results = results
        self.bar = progress.Progress(
            progress.TextColumn("{task.completed}/{task.total} prompts"),
            progress.BarColumn(bar_width=20),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.description}"),
            console=console,
        )
        self.task = self.bar.add_task(self.so_far(), total=total, completed=len(results.records))

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *_error: Any) -> None:
        self.bar.stop()

    def advance(self) -> None:
        self.bar.update(self.task, advance=1, description=self.so_far())

    def so_far(self) -> str:
        """tau and speed-up of every speculative method over all prompts measured, by temperature."""
        found = cells(self.results.records, intervals=False)
        last = {(each.method, each.temperature): each for each in found}  # all sets together come last
        return "  ".join(
            f"{each.method} τ {each.tau:.2f} {each.speedup:.2f}×"
            for each in last.values()
            if each.method not in PLAIN and each.tau is not None and each.speedup is not None
        )
