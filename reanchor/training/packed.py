"""One differentiable pass of a block drafter over many anchors of one recorded text, isolated by a mask.

The drafter's own modules do the work, so a packed pass and a decode differ in nothing but who stands beside
whom. It knows no target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.drafter_config import LayerRule


@dataclass(frozen=True)
class CarryoverRows:
    """Rejected states of all blocks together: row r is read by block owners[r] alone."""

    features: Tensor  # [R, Dc], detached
    owners: Tensor  # [R]
    positions: Tensor  # [R]


class MaskedAttention:
    """Differentiable attention under a mask; a group's heads are folded into query rows, so that no key is repeated."""

    def __init__(self, visible: Tensor, groups: int) -> None:
        self.visible = visible  # [S, T] bool
        self.mask = visible.repeat_interleave(groups, 0)  # [S * groups, T]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        slots, heads, size = queries.shape
        folded = queries.view(slots, len(keys), -1, size).transpose(0, 1).reshape(1, len(keys), -1, size)
        out = F.scaled_dot_product_attention(folded, keys[None], values[None], self.mask, scale=scale)
        return out.view(len(keys), slots, -1, size).transpose(0, 1).reshape(slots, heads, size)


def block_states(
    drafter: BlockDrafter,
    ids: Tensor,
    features: Tensor,
    anchors: Tensor,
    carried: CarryoverRows | None = None,
    embed_carried: bool = True,
) -> Tensor:
    """Final states of the predicting slots: the block of anchors[b] reads F_p for p < anchors[b] and its own
    carried rows.

    ids: [L]; features: [L, Dc]; anchors: [A] -> [A, K, H]
    """
    size = drafter.block_size
    blocks = torch.full((len(anchors), size), drafter.config.mask_token_id, device=ids.device)
    blocks[:, 0] = ids[anchors]
    reach = int(anchors.max())  # context rows that any block reads
    embedded = drafter.embed(blocks.view(-1))  # [S, H]
    rows = [features[:reach].to(embedded)]
    owners = anchors.new_empty(0)
    positions = [torch.arange(reach, device=ids.device)]
    if carried is not None and len(carried.owners):
        marked = carried.features.to(embedded)
        rows.append(marked + drafter.carryover_embedding if embed_carried else marked)
        owners = carried.owners
        positions.append(carried.positions)
    slots = (anchors[:, None] + torch.arange(size, device=ids.device)).view(-1)  # [S]
    keys = torch.cat([*positions, slots])  # [T]
    owned = ownership(anchors, reach, owners, size)
    angles = drafter.body.rotary(keys, int(keys.max()) + 1, embedded)
    rules = drafter.config.rules
    sights = {rule: MaskedAttention(within(owned, slots, keys, rule), drafter.groups) for rule in set(rules)}
    context = drafter.body.project(torch.cat(rows))
    stores = [all_rows] * len(rules)
    hidden = drafter.body(embedded, context, angles, stores, [sights[rule] for rule in rules])
    return hidden.view(len(anchors), size, -1)[:, size - drafter.proposals :]


def all_rows(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """A store without a cache: all keys are in the pass."""
    return keys.transpose(0, 1), values.transpose(0, 1)


def ownership(anchors: Tensor, reach: int, owners: Tensor, size: int) -> Tensor:
    """[S, T] bool: context before the block's anchor, its carried rows, its slots."""
    blocks = torch.arange(len(anchors), device=anchors.device)
    context = torch.arange(reach, device=anchors.device) < anchors[:, None]  # [A, reach]
    own = blocks[:, None] == blocks.repeat_interleave(size)[None]  # [A, S]
    return torch.cat([context, owners == blocks[:, None], own], dim=1).repeat_interleave(size, 0)


def within(owned: Tensor, slots: Tensor, keys: Tensor, rule: LayerRule) -> Tensor:
    """What a layer's rule leaves of it, by distance. owned: [S, T]; slots: [S]; keys: [T]"""
    away = slots[:, None] - keys[None]
    if rule.causal:
        owned = owned & (away >= 0)
    if rule.window is not None:
        owned = owned & (away.abs() < rule.window)
    return owned
