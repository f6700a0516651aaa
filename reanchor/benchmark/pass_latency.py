"""Latency of one verify pass against its width and of one draft against its blocks, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import reanchor.calibration as engine
from reanchor.calibration import REPEATS
from reanchor.decoder import SpeculativeDecoder
from reanchor.stats import Stopwatch

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class PassLatency:
    """Seconds by size."""

    context: int  # committed tokens while it was measured
    verify: dict[int, float]  # tree nodes -> one pass of the target
    draft: dict[int, float]  # blocks -> one call of the drafter

    def break_even(self, nodes: int, blocks: int) -> float:
        """The acceptance length at which a round of this size is as fast as plain decoding."""
        return (self.verify[nodes] + self.draft[blocks]) / self.verify[1]

    def to_dict(self) -> dict[str, Any]:
        return {
            "context": self.context,
            "verify": {str(size): cost for size, cost in self.verify.items()},
            "draft": {str(size): cost for size, cost in self.draft.items()},
        }


def from_dict(given: dict[str, Any]) -> PassLatency:
    curves = [{int(size): cost for size, cost in given[name].items()} for name in ("verify", "draft")]
    return PassLatency(given["context"], *curves)


def measure_latency(
    decoder: SpeculativeDecoder, prompt: list[int], widths: Sequence[int] = WIDTHS, repeats: int = REPEATS
) -> PassLatency:
    """Both curves behind one prompt."""
    clock = Stopwatch(decoder.synchronize())
    verify, draft = engine.measure_curves(
        decoder.target, decoder.drafter, prompt, widths, clock, repeats=repeats
    )
    return PassLatency(len(prompt), verify, draft)
