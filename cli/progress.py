"""How far a long run is, with the figures so far."""

from __future__ import annotations

from typing import Any

from rich import progress

from reanchor.benchmark.record import Record
from reanchor.benchmark.report import PLAIN, totals
from reanchor.benchmark.results import Results

from .console import console


class Progress:
    """A bar on stderr over the prompts of a run. Its figures are added up prompt by prompt."""

    def __init__(self, total: int, results: Results) -> None:
        self.sums: dict[str, list[float]] = {}  # method -> tokens decoded, target passes, seconds
        for each in results.records:
            self.add(each)
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

    def advance(self, record: Record) -> None:
        self.add(record)
        self.bar.update(self.task, advance=1, description=self.so_far())

    def add(self, record: Record) -> None:
        for method in record.methods:
            sums = self.sums.setdefault(method, [0.0, 0.0, 0.0])
            for index, each in enumerate(totals([record], method)):
                sums[index] += sum(each)

    def so_far(self) -> str:
        """tau and speed-up of every speculative method over all prompts measured."""
        pace = {
            name: seconds / tokens for name, (tokens, _, seconds) in self.sums.items() if tokens and seconds
        }
        plain = min((pace[name] for name in PLAIN if name in pace), default=None)
        return "  ".join(
            f"{name} τ {tokens / passes:.2f}" + (f" {plain / pace[name]:.2f}×" if plain else "")
            for name, (tokens, passes, _) in self.sums.items()
            if name not in PLAIN and name in pace and passes
        )
