"""The drafter's memory of one decode: keys and values of committed positions; it knows no model."""

from __future__ import annotations

import torch
from torch import Tensor


class ContextCache:
    """Rows of committed positions for every layer, and scratch room behind them for the draft in progress.

    Committed features wait as they came until the next draft projects them, together with the retained rows:
    each is projected once, and the weights are read once a round.
    """

    def __init__(self, shapes: list[tuple[int, int]], dtype: torch.dtype, device: torch.device) -> None:
        self.shapes, self.dtype, self.device = shapes, dtype, device  # shapes: (kv heads, head size) a layer
        self.projected = 0  # committed rows in the buffers
        self.pending: list[Tensor] = []  # each [m, Dc]
        self.waiting = 0  # rows of `pending`
        self.capacity = 0
        self.buffers: list[Tensor] = []  # a layer: [2, kv heads, capacity, hd], keys then values
        self._device_length: Tensor | None = None

    def __len__(self) -> int:
        return self.projected + self.waiting

    def queue(self, features: Tensor) -> None:
        self.pending.append(features)
        self.waiting += len(features)

    def settle(self) -> None:
        """What waited is in the buffers now."""
        self.projected, self.waiting, self.pending = len(self), 0, []

    def device_length(self) -> Tensor:
        """[1] int64: a place on the device for `projected`, for drafts that may not ask the host."""
        if self._device_length is None:
            self._device_length = torch.tensor([self.projected], device=self.device)
        return self._device_length

    def reserve(self, rows: int) -> None:
        if rows <= self.capacity:
            return
        self.capacity = max(256, 1 << (rows - 1).bit_length())
        grown = []
        # Zeros: rows not yet written are read under a mask, and NaN that memory held before would outlive it.
        with torch.inference_mode(False), torch.no_grad():  # whoever asks, others will write here
            for layer, (heads, size) in enumerate(self.shapes):
                buffer = torch.zeros(2, heads, self.capacity, size, dtype=self.dtype, device=self.device)
                if self.buffers:
                    buffer[:, :, : self.projected] = self.buffers[layer][:, :, : self.projected]
                grown.append(buffer)
        self.buffers = grown

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows [rows, kv heads, hd] behind the projected ones; give all rows [kv heads, end, hd]."""
        buffer, end = self.buffers[layer], self.projected + len(keys)
        buffer[0, :, self.projected : end] = keys.transpose(0, 1)
        buffer[1, :, self.projected : end] = values.transpose(0, 1)
        return buffer[0, :, :end], buffer[1, :, :end]
