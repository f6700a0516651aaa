"""Who sees whom in one batched draft: the blocks' slots against context, retained rows and each other.

Everything is told relative to the anchor's position i; it knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from reanchor.drafters.config import LayerRule


@dataclass(frozen=True)
class Layout:
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
) -> Layout:
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
    return Layout(queries, np.concatenate([np.arange(retained), np.arange(carried), queries]), owned)


def first_key(rule: LayerRule, committed: int) -> int:
    """The first committed row any slot can see; what lies before it need not be read at all."""
    return 0 if rule.window is None else max(0, committed - rule.window + 1)


def additive_mask(
    layout: Layout, rule: LayerRule, committed: int, groups: int, like: Tensor
) -> Tensor | None:
    """[S * groups, keys from first_key on] zeros and -inf, rows slot by slot; None when all is visible."""
    context = committed - first_key(rule, committed)
    away = layout.queries[:, None] - layout.keys[None]  # [S, T]
    tail = layout.owned.copy()
    if rule.causal:
        tail &= away >= 0
    if rule.window is not None:
        tail &= away < rule.window
        tail &= away > -rule.window
    window = rule.window or len(tail) + context + layout.reach  # beyond any distance here
    if tail.all() and context + layout.reach <= window:
        return None
    mask = like.new_zeros(len(tail), groups, context + tail.shape[1])
    hidden = torch.from_numpy(~tail).to(like.device)  # [S, T]
    mask[:, :, context:].masked_fill_(hidden[:, None], float("-inf"))
    if context + layout.reach > window:
        queries = torch.from_numpy(layout.queries).to(like.device)
        before = torch.arange(-context, 0, device=like.device)
        far = queries[:, None] - before[None] >= window  # [S, context]
        mask[:, :, :context].masked_fill_(far[:, None], float("-inf"))
    return mask.flatten(0, 1)
