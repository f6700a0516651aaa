"""Which response positions become anchors, in which order responses come, and what each slot's loss weighs."""

from __future__ import annotations

import math
import random

from reanchor.training.responses import Response


def sample_anchors(response: Response, proposals: int, count: int, rng: random.Random) -> list[int]:
    """Positions in the whole sequence, in order: uniform over those that leave room for a block."""
    first = len(response.prompt_ids)
    candidates = range(first, first + len(response.response_ids) - proposals)
    return sorted(rng.sample(candidates, min(count, len(candidates))))


def rng_of(*numbers: int) -> random.Random:
    """Chance that depends on its place alone, so that a resumed run needs no saved state."""
    return random.Random(":".join(map(str, numbers)))


class EpochOrder:
    """Every response once an epoch, each epoch in an order of its own."""

    def __init__(self, size: int, batch: int, seed: int) -> None:
        self.size, self.batch, self.seed = size, batch, seed
        self.epochs: dict[int, list[int]] = {}

    def at(self, step: int) -> list[int]:
        """Which responses step `step` (from 0) reads."""
        return [self.place(place) for place in range(step * self.batch, (step + 1) * self.batch)]

    def place(self, place: int) -> int:
        epoch, index = divmod(place, self.size)
        if epoch not in self.epochs:
            self.epochs = {epoch: rng_of(self.seed, epoch).sample(range(self.size), self.size)}
        return self.epochs[epoch][index]


def slot_weights(proposals: int, gamma: float) -> list[float]:
    """exp(-(j-1)/gamma) for slot j = 1..K."""
    return [math.exp(-slot / gamma) for slot in range(proposals)]
