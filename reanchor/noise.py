"""The numbers that decide what is sampled, position by position, and known before anything is proposed there.

Token i of a position arrives after an exponential time over its probability, and the first to arrive is drawn: the
exponential race, or Gumbel-max trick. `torch.multinomial` draws such times with its generator at every call. Here they
are drawn in the same order with the same generator, and may be looked at ahead: they depend on no text and no proposal,
and whatever a draft makes of them, the target's draw at a position is decided by its probabilities and these times
alone.
"""

from __future__ import annotations

import threading
from collections import deque

import torch
from torch import Tensor

LOCK = threading.Lock()  # between a draw and the state behind it


class SamplingNoise:
    """Of one decode. Every row is drawn once and belongs to one position; nobody else is given its numbers."""

    def __init__(self, generator: torch.Generator | None, device: torch.device) -> None:
        self.generator, self.device = generator, device
        self.source = default_generator(device) if generator is None else generator
        self.size = 0  # of the vocabulary, known from the first draw on
        self.rows: deque[tuple[Tensor, Tensor | None]] = (
            deque()
        )  # times [V], the generator's state behind them
        self.behind: Tensor | None = None  # the generator's state behind the last token committed

    def row(self, place: int) -> Tensor:
        """Of the token `place` places after the next one. [V]"""
        assert self.size, "the first token is drawn before any is foreseen"
        while len(self.rows) <= place:
            with LOCK:
                times = torch.empty(1, self.size, dtype=torch.float32, device=self.device)
                times.exponential_(generator=self.generator)
                self.rows.append((times[0], self.state()))
        return self.rows[place][0]

    def advance(self) -> None:
        """The next token is committed."""
        if self.rows:
            self.behind = self.rows.popleft()[1]

    def restore_unused(self) -> None:
        """No token follows: what was foreseen for others is given back, unless somebody drew in between."""
        with LOCK:
            if self.rows and self.source is not None and self.behind is not None:
                now, mine = self.state(), self.rows[-1][1]
                if now is not None and mine is not None and torch.equal(now, mine):
                    self.source.set_state(self.behind)
        self.rows.clear()

    def state(self) -> Tensor | None:
        return None if self.source is None else self.source.get_state()


def default_generator(device: torch.device) -> torch.Generator | None:
    """What draws where nobody brings a generator; None where it is out of reach."""
    if device.type == "cuda":
        place = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[place]
    return torch.default_generator if device.type == "cpu" else None
