"""One attention call: queries over a shared prefix and a short tail behind it. It knows no tree, no
drafter, no model.

Rows [0, L) of the K/V buffers are the prefix, every query sees all of it; row p has position p. Rows [L,
L+T) are the tail: row L+j has position L + tail_depths[j], and query v, at position L + depths[v], sees it
exactly when bit j of its words is set. A window W hides every row whose position is W or more away from
the query's.

A tree is the case T = N with every node seeing its ancestors and itself; a batch of draft blocks is the
case where the tail holds retained rows, then the blocks' slots, and every slot sees its own block and its
part of the retained rows. Further letters: L prefix rows, T tail rows, S rows allocated, Hq and Hkv query
and key heads, G = Hq / Hkv, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

WORD = 32


def words_for(tail: int) -> int:
    return -(-tail // WORD)


@dataclass(frozen=True)
class Visibility:
    """Who sees which tail row, and where everybody stands: the part of a problem that all layers share."""

    length: Tensor  # [1] int32, on the device: L
    words: Tensor  # [N, ceil(T/32)] int32; bit j % 32 of word j // 32 of row v: query v sees tail row j
    depths: Tensor  # [N] int32; a query's position less L
    tail_depths: Tensor  # [T] int32; a tail row's position less L
    max_depth: int  # no depth exceeds it
    host_length: int | None = None  # L where the host knows it; None inside a graph
    complete: bool = False  # every query is known to see every tail row
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # masks, made once a pass

    @classmethod
    def pack(
        cls,
        sees: np.ndarray,  # [N, T] bool
        depths: Sequence[int] | np.ndarray,  # [N]
        length: int,
        device: torch.device | str = "cpu",
        tail_depths: Sequence[int] | np.ndarray | None = None,  # [T]; None: the tail rows are the queries
    ) -> Visibility:
        tail_depths = depths if tail_depths is None else tail_depths
        queries, tail = sees.shape
        if len(depths) != queries or len(tail_depths) != tail:
            raise ValueError(
                f"{len(depths)} and {len(tail_depths)} depths do not fit visibility {sees.shape}"
            )
        bits = np.zeros((queries, words_for(tail) * WORD), dtype=bool)
        bits[:, :tail] = sees
        words = np.packbits(bits, axis=1, bitorder="little").view("<i4")  # [N, W]
        depth, tail_depth = (np.asarray(d, dtype=np.int32) for d in (depths, tail_depths))
        # One transfer for everything: a copy to the device costs a launch however small it is.
        flat = np.concatenate([np.array([length], dtype=np.int32), words.ravel(), depth, tail_depth])
        sizes = [1, words.size, queries, tail]
        row, packed, at, tail_at = torch.from_numpy(flat).to(device).split(sizes)
        furthest = int(max(depth.max(initial=0), tail_depth.max(initial=0)))
        return cls(row, packed.view(words.shape), at, tail_at, furthest, length, bool(sees.all()))

    def on(self, device: torch.device) -> Visibility:
        """The same for a layer on another device, moved once a pass."""
        if self.length.device == device:
            return self
        key = ("on", device)
        if key not in self.memo:
            names = ("length", "words", "depths", "tail_depths")
            self.memo[key] = replace(
                self, **{name: getattr(self, name).to(device) for name in names}, memo={}
            )
        return self.memo[key]

    @property
    def queries(self) -> int:
        return self.depths.shape[0]

    @property
    def tail(self) -> int:
        return self.tail_depths.shape[0]

    def known_length(self) -> int | None:
        """L on the host, where asking costs no wait for a device."""
        if self.host_length is not None:
            return self.host_length
        return int(self.length) if self.length.device.type == "cpu" else None

    def tail_mask(self) -> Tensor:
        """[N, T] bool: the words, unpacked."""
        if "tail" not in self.memo:
            shifts = torch.arange(WORD, dtype=torch.int32, device=self.words.device)
            bits = (self.words[:, :, None] >> shifts) & 1  # [N, W, 32]
            self.memo["tail"] = bits.bool().flatten(1)[:, : self.tail]
        return self.memo["tail"]

    def rows(self, window: int | None) -> tuple[int, int]:
        """The range of buffer rows that some query sees."""
        length = self.known_length()
        assert length is not None, (
            "a backend that slices the cache must decline when the host does not know the length"
        )
        start = 0 if window is None else max(0, length + 1 - window)
        return start, length + self.tail

    def window_binds(self, window: int | None) -> bool:
        """Whether a window hides anything at all; true as well when the host cannot tell."""
        if window is None:
            return False
        length = self.known_length()
        return length is None or length + self.max_depth >= window

    def mask(self, window: int | None) -> Tensor:
        """[N, rows] bool over the range `rows(window)`: the definition of what a query sees."""
        window = window if self.window_binds(window) else None
        key = ("mask", window)
        if key not in self.memo:
            start, end = self.rows(window)
            prefix = end - self.tail - start
            seen = torch.cat([self.words.new_ones(self.queries, prefix).bool(), self.tail_mask()], dim=1)
            if window is not None:
                before = torch.arange(-prefix, 0, dtype=torch.int32, device=seen.device)
                distance = self.depths[:, None] - torch.cat([before, self.tail_depths])  # [N, rows]
                seen = seen & (distance.abs() < window)
            self.memo[key] = seen
        return self.memo[key]


@dataclass(frozen=True)
class Problem:
    """One layer's attention: the definition is `reference.attend`."""

    queries: Tensor  # [N, Hq, D]
    keys: Tensor  # [Hkv, S, D]; rows beyond L + T are never read
    values: Tensor  # [Hkv, S, D]
    sees: Visibility
    scale: float
    window: int | None = None
    softcap: float | None = None  # c: scores become c * tanh(score / c)

    def __post_init__(self) -> None:
        assert self.queries.shape[0] == self.sees.queries, "one row of visibility per query"
        assert self.keys.shape == self.values.shape, "keys and values share one buffer shape"
        assert self.queries.shape[1] % self.keys.shape[0] == 0, "query heads divide into key heads"

    @property
    def groups(self) -> int:
        """G: query heads that share a key head."""
        return self.queries.shape[1] // self.keys.shape[0]

    @property
    def head_size(self) -> int:
        return self.queries.shape[2]

    @property
    def binding_window(self) -> int | None:
        """The window where it hides something, else None."""
        return self.window if self.sees.window_binds(self.window) else None

    def folded(self) -> Tensor:
        """[Hkv, G*N, D]: the query heads of a group as further rows, so that no key is repeated for them."""
        heads = self.queries.transpose(0, 1)  # [Hq, N, D]
        return heads.reshape(self.keys.shape[0], -1, self.head_size)

    def unfolded(self, rows: Tensor) -> Tensor:
        """[N, Hq, D] from [Hkv, G*N, D]."""
        return rows.reshape(self.queries.shape[1], -1, self.head_size).transpose(0, 1)
