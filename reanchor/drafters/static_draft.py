"""A block drafter's batched draft with fixed shapes and nothing read on the host, so that a captured graph may hold it.

It gives what `BlockDrafter.draft` gives, greedy. What changes from round to round is read from the device: how many
committed rows there are, and how many of those that wait to be projected count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reanchor.drafters.block_mask import BlockMask, block_mask, layout_blocks
from reanchor.drafters.context import ContextCache
from reanchor.drafters.drafter_rotary import LENGTH_DEPENDENT

if TYPE_CHECKING:
    from reanchor.drafters.block import BlockDrafter


@dataclass(frozen=True)
class DraftInputs:
    """What a draft reads, in buffers that stay where they are."""

    anchor: Tensor  # [1] int64
    waiting: Tensor  # [1] int64; rows of `pending` that count
    pending: Tensor  # [W, Dc] features of committed positions that are in no buffer yet
    tokens: Tensor  # [W] int64; of the retained states
    features: Tensor  # [W, Dc] the retained states


def static_draft_refusal(drafter: BlockDrafter) -> str | None:
    """Why a drafter has no draft of fixed shapes."""
    kind = drafter.body.rotary.embedding.rope_type
    return (
        f"the drafter's rotary frequencies ({kind}) change with the length"
        if kind in LENGTH_DEPENDENT
        else None
    )


class StaticShapeDraft:
    """One number of blocks over one context, whose buffers it keeps."""

    def __init__(self, drafter: BlockDrafter, context: ContextCache, blocks: int, width: int) -> None:
        self.drafter, self.blocks, self.width = drafter, blocks, width  # width: rows of `pending`
        self.buffers, self.capacity = list(context.buffers), context.capacity
        self.projected = context.device_length()  # [1] int64
        layout = layout_blocks(tuple(range(blocks)), blocks - 1, drafter.block_size)
        self.keys = torch.from_numpy(layout.keys).to(drafter.device)  # [T]
        self.rules = drafter.config.rules
        self.sights = {
            rule: block_mask(layout, rule, 0, drafter.device, drafter.attention) for rule in self.rules
        }
        self.steps = torch.arange(max(width, len(self.keys)), device=drafter.device)
        masks = (blocks, drafter.block_size - 1)
        self.masks = torch.full(masks, drafter.config.mask_token_id, device=drafter.device)
        like = drafter.body.norm.weight
        drafter.body.rotary(self.keys, self.capacity, like)  # reserves the table
        table = drafter.body.rotary.table
        assert table is not None, "refusal() names the drafters that have none"
        self.table = table

    def run(self, fed: DraftInputs) -> tuple[Tensor, Tensor]:
        """Blocks [blocks, K + 1] and how many tokens of each count [blocks]; what waited is projected after it."""
        drafter, step = self.drafter, self.steps[: self.width]
        committed = self.projected + fed.waiting
        anchors = torch.cat([fed.anchor, fed.tokens[: self.blocks - 1]])
        embedded = drafter.embed(torch.cat([anchors[:, None], self.masks], 1).view(-1))  # [S, H]
        rows = torch.cat([fed.pending, fed.features[: self.blocks - 1]]).to(embedded)
        positions = torch.cat([self.projected + step, committed + self.keys])
        # what doesn't count goes to the far end, which no draft reaches
        places = torch.where(step < fed.waiting, self.projected + step, self.capacity - self.width + step)
        places = torch.cat([places, committed + self.steps[: len(self.keys)]])
        angles = (self.table[0].index_select(0, positions), self.table[1].index_select(0, positions))
        sights = {rule: self.after(committed, seen) for rule, seen in self.sights.items()}
        hidden = drafter.body(
            embedded,
            drafter.body.project(rows),
            angles,
            [self.store(buffer, places) for buffer in self.buffers],
            [sights[rule] for rule in self.rules],
        )
        self.projected.copy_(committed)
        hidden = hidden.view(self.blocks, drafter.block_size, -1)[:, drafter.block_size - drafter.proposals :]
        tokens = torch.cat([anchors[:, None], drafter.propose(hidden, anchors).tokens], 1)  # [blocks, K + 1]
        confidence = drafter.confidence(hidden, tokens)
        if confidence is None:
            return tokens, torch.full_like(anchors, tokens.shape[1])
        return tokens, 1 + drafter.sure(confidence)[:, 0]

    def after(self, committed: Tensor, seen: BlockMask) -> BlockMask:
        """The same sight behind the rows that there are now."""
        sees = replace(seen.sees, length=committed.int(), host_length=None, memo={})
        return replace(seen, sees=sees)

    def store(self, buffer: Tensor, places: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        def write(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            buffer[0].index_copy_(1, places, keys.transpose(0, 1))
            buffer[1].index_copy_(1, places, values.transpose(0, 1))
            return buffer[0], buffer[1]

        return write
