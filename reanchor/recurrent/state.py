"""A recurrent layer of the target's cache: what is committed of it, as transformers keeps it, and how a path is added.

There is one state, not one a token: it moves forward by committing and cannot go back.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from transformers import cache_utils
from transformers.cache_utils import LinearAttentionLayer

from reanchor.recurrent import causal_convolution, solve
from reanchor.recurrent.recurrence import Kept


class Verified(Protocol):
    """What a layer keeps of a verified tree."""

    @property
    def rows(self) -> Tensor: ...  # [N, C] what entered the convolution

    @property
    def recurrence(self) -> Kept | None: ...

    @property
    def transposed(self) -> bool: ...  # the cache has the state as [H, V, K]


# What transformers puts in the place of a layer without any cache: before 5.20 a recurrent one that stays empty.
NoLayer: type = getattr(cache_utils, "DummyLayer", LinearAttentionLayer)


class StateLayer(LinearAttentionLayer):
    """transformers' own layer of convolution columns [1, C, W] and a recurrent state [1, H, ...], so that its prefill
    fills it and its passes go on with it.
    """

    is_croppable = False
    is_sliding = False
    spare: Tensor | None = None  # a second state's memory: the next is written there, and they change places

    def crop(self, tokens_to_remove: int) -> None:
        """`TreeCache.crop` refuses before any layer is asked."""

    def after(self, kept: Verified, path: Tensor) -> tuple[Tensor, Tensor | None]:
        """Columns and state after a path [L] of the verified tree; changes nothing that is committed."""
        columns = causal_convolution.commit(self.conv_states[0][0], kept.rows, path)[None]
        if kept.recurrence is None:
            return columns, None
        state, dtype = self.recurrent_states[0], kept.recurrence.writes.dtype
        if self.spare is None or self.spare.shape != state.shape or self.spare.dtype != dtype:
            self.spare = torch.empty_like(state, dtype=dtype)
        solve.commit(state[0], kept.recurrence, path, kept.transposed, out=self.spare[0])
        return columns, self.spare

    def take(self, columns: Tensor, state: Tensor | None) -> None:
        self.conv_states[0] = columns
        if state is not None:
            self.recurrent_states[0], self.spare = state, self.recurrent_states[0]

    def hand_over(self) -> None:
        """No more trees: transformers moves on in place."""
        self.spare = None
