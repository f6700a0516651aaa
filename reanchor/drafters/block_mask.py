"""Attention mask of one batched draft: the blocks' slots against context, retained rows and each other.

Everything is told relative to the anchor's position i; it knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from reanchor.attention.problem import Problem, Visibility
from reanchor.attention.table import Attention
from reanchor.drafters.drafter_config import LayerRule


@dataclass(frozen=True)
class BlockLayout:
    """Keys behind the committed context, in buffer order: retained rows, carried rows, every block's slots."""

    queries: np.ndarray  # [S] position of each slot, less i
    keys: np.ndarray  # [T] position of each key behind the context, less i
    owned: np.ndarray  # [S, T] bool: the key belongs to what the slot's block reads

    @property
    def reach(self) -> int:
        """Positions the slots reach beyond i."""
        return int(self.queries.max()) + 1


@lru_cache(maxsize=256)
def layout_blocks(
    offsets: tuple[int, ...], retained: int, block_size: int, carried: int = 0, shifted: bool = False
) -> BlockLayout:
    """Block d (0: the baseline) reads retained rows 1..d and its own slots, at i+d .. i+d+B-1.

    The baseline reads the rows carried over, too; with `shifted`, block d reads those of them that follow row d.
    """
    shifts = np.array(offsets)  # [blocks]
    queries = (shifts[:, None] + np.arange(block_size)).ravel()  # [S]
    reads = np.arange(1, retained + 1)[None] <= shifts[:, None]  # [blocks, retained]
    follows = np.arange(1, carried + 1)[None] > shifts[:, None]  # [blocks, carried]
    if not shifted:
        follows = follows & (shifts[:, None] == 0)
    blocks = np.arange(len(offsets)).repeat(block_size)  # [S]
    owned = np.concatenate([reads[blocks], follows[blocks], blocks[:, None] == blocks[None]], axis=1)
    return BlockLayout(queries, np.concatenate([np.arange(retained), np.arange(carried), queries]), owned)


@dataclass(frozen=True)
class BlockMask:
    """What a layer's slots see of the rows of one draft, and what attends by it."""

    attention: Attention
    sees: Visibility
    window: int | None

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """queries: [S, heads, hd]; keys, values: [kv heads, rows, hd] -> [S, heads, hd]"""
        return self.attention.attend(Problem(queries, keys, values, self.sees, scale, self.window))


def block_mask(
    layout: BlockLayout, rule: LayerRule, committed: int, device: torch.device, attention: Attention
) -> BlockMask:
    """A layer's rule over the committed rows and those of `layout` behind them."""
    sees = layout.owned
    if rule.causal:
        sees = sees & (layout.queries[:, None] >= layout.keys[None])
    visible = Visibility.pack(sees, layout.queries, committed, device, layout.keys)
    return BlockMask(attention, visible, rule.window)
