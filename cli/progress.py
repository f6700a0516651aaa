"""Progress of a long run, with the figures so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import progress
from rich.columns import Columns
from rich.console import RenderableType
from rich.text import Text

from reanchor.benchmark.aggregation import PLAIN, totals
from reanchor.benchmark.record import PromptRecord
from reanchor.benchmark.results import Results

from .console import console, quieted


class Bar(progress.Progress):
    """With figures below it, as many a line as there is room for."""

    figures: list[str] = []

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.figures:
            yield Columns([Text(each, no_wrap=True) for each in self.figures], padding=(0, 2))


class Progress:
    """A bar on stderr over the prompts of a run. Its figures are added up prompt by prompt."""

    def __init__(self, total: int, results: Results) -> None:
        self.sums: dict[str, list[float]] = {}  # method -> tokens decoded, target passes, seconds
        self.faults: dict[str, int] = {}
        for each in results.records:
            self.add(each)
        self.bar = Bar(
            progress.TextColumn("{task.completed}/{task.total} prompts"),
            progress.BarColumn(bar_width=20),
            progress.TimeRemainingColumn(),
            console=console,
            disable=quieted(),
        )
        self.task = self.bar.add_task("", total=total, completed=len(results.records))
        self.bar.figures = self.so_far()

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *_error: Any) -> None:
        self.bar.stop()

    def advance(self, record: PromptRecord) -> None:
        self.add(record)
        self.bar.figures = self.so_far()
        self.bar.update(self.task, advance=1)

    def add(self, record: PromptRecord) -> None:
        for method in record.methods:
            sums = self.sums.setdefault(method, [0.0, 0.0, 0.0])
            for index, each in enumerate(totals([record], method)):
                sums[index] += sum(each)
        for difference in record.differences:
            self.faults[difference.method] = self.faults.get(difference.method, 0) + difference.fault

    def so_far(self) -> list[str]:
        """tau and speed-up of every speculative method over all prompts measured; a faulty one has no speed-up."""
        throughput = {
            name: seconds / tokens for name, (tokens, _, seconds) in self.sums.items() if tokens and seconds
        }
        plain = min(
            (throughput[name] for name in PLAIN if name in throughput and not self.faults.get(name)),
            default=None,
        )
        said = []
        for name, (tokens, passes, _) in self.sums.items():
            if name in PLAIN or name not in throughput or not passes:
                continue
            faults = self.faults.get(name)
            speed = f" {faults} faults" if faults else f" {plain / throughput[name]:.2f}×" if plain else ""
            said.append(f"{name} τ {tokens / passes:.2f}{speed}")
        return said
