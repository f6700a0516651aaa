"""Settings of the recording of responses; it knows no model."""

from __future__ import annotations

from dataclasses import dataclass

from reanchor.config import knob


@dataclass(frozen=True)
class RecordConfig:
    """How the target answers; the defaults are greedy answers of moderate length."""

    max_new_tokens: int = knob(256, "Longest response.")
    batch: int = knob(32, "Prompts answered at once.")
    temperature: float = knob(0.0, "0 answers greedily.")
    seed: int = knob(0, "Seed of sampling.")
    taps: str | None = knob(
        None, "Target layers whose outputs --features keeps.  [default: those of a new drafter]"
    )

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or positive, got {self.temperature}")
