"""The numbers that decide what is sampled, position by position, and known before anything is proposed there.

Token i of a position arrives after an exponential time over its probability, and the first to arrive is drawn: the
exponential race, or Gumbel-max trick. `torch.multinomial` draws such times with its generator at every call. Here they
are drawn in the same order with the same generator, and may be looked at ahead: they depend on no text and no proposal,
and whatever a draft makes of them, the target's draw at a position is decided by its probabilities and these times
alone.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor


class Times:
    """Of one decode. Ahead of the last committed token only where they are `foreseen`: looking ahead takes numbers from
    a copy of the generator, whose own state stays where plain decoding would have it.
    """

    def __init__(self, generator: torch.Generator | None, device: torch.device, foreseen: bool) -> None:
        self.source = default_generator(device) if generator is None else generator
        self.device, self.foreseen = device, foreseen and self.source is not None
        self.copy: torch.Generator | None = None
        self.size = 0  # of the vocabulary, known from the first draw on
        self.rows: deque[tuple[Tensor, Tensor]] = deque()  # times [V], and the copy's state behind them

    def first(self, size: int) -> Tensor:
        """Of the next token. [V]"""
        self.size = size
        return self.at(0) if self.foreseen else self.drawn(self.source)

    def at(self, place: int) -> Tensor:
        """Of the token `place` places after the next one. [V]"""
        assert self.source is not None and self.size, "the first token is drawn before any is foreseen"
        if self.copy is None:
            self.copy = torch.Generator(self.device)
            self.copy.set_state(self.source.get_state())
        while len(self.rows) <= place:
            self.rows.append((self.drawn(self.copy), self.copy.get_state()))
        return self.rows[place][0]

    def drawn(self, generator: torch.Generator | None) -> Tensor:
        return torch.empty(1, self.size, device=self.device).exponential_(generator=generator)[0]

    def advance(self) -> None:
        """The next token is committed."""
        if self.rows:
            assert self.source is not None
            self.source.set_state(self.rows.popleft()[1])


def default_generator(device: torch.device) -> torch.Generator | None:
    """What draws where nobody brings a generator; None where it is out of reach."""
    if device.type == "cuda":
        place = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[place]
    return torch.default_generator if device.type == "cpu" else None
