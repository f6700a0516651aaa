"""A prompt that could not be measured. A line of a results file, in the place of a record."""

from __future__ import annotations

from dataclasses import dataclass

from reanchor.benchmark.record import Key


@dataclass(frozen=True)
class Skip:
    dataset: str
    id: str
    temperature: float
    skipped: str  # why

    @property
    def key(self) -> Key:
        return self.dataset, self.temperature, self.id

    def to_dict(self) -> dict[str, str | float]:
        return dict(vars(self))
