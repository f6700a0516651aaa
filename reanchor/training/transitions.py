"""Draft and verify from every anchor at once: the shifted anchors and rejected states of Algorithm 2.

Nothing here has a gradient; the second draft, which learns, is the lesson's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reanchor.drafters.block import BlockDrafter
from reanchor.training.feature_store import FeatureStore, grow
from reanchor.training.packed import CarryoverRows, block_states
from reanchor.training.responses import Response


@dataclass(frozen=True)
class Transitions:
    anchors: Tensor  # [A'] shifted, a + m + 1
    carried: CarryoverRows
    accepted: list[int]  # [A] m of every sampled anchor
    logits: Tensor  # [R, V] the target's, after every recorded position
    dropped: int  # sampled anchors whose shifted block runs past the response


@torch.no_grad()
def draft_tokens(drafter: BlockDrafter, ids: Tensor, features: Tensor, anchors: Tensor) -> Tensor:
    """Greedy proposals of every anchor. -> [A, K]"""
    hidden = block_states(drafter, ids, features, anchors)
    return drafter.propose(hidden, ids[anchors]).tokens


@torch.no_grad()
def advance(
    drafter: BlockDrafter, teacher: FeatureStore, response: Response, features: Tensor, anchors: list[int]
) -> Transitions:
    """One round from every anchor, as decoding would do it. features: [L, Dc]"""
    ids = torch.tensor(response.ids, device=features.device)
    drafts = draft_tokens(drafter, ids, features, torch.tensor(anchors, device=ids.device)).tolist()
    branches = grow(response, anchors, drafts)
    output = teacher.judge(response, branches.tree)
    accepted = branches.accepted(output.logits.argmax(-1).tolist())
    shifted: list[int] = []
    rows: list[int] = []
    owners: list[int] = []
    positions: list[int] = []
    for anchor, path, count in zip(anchors, branches.paths, accepted, strict=True):
        new = anchor + count + 1
        if new + drafter.proposals >= len(ids):
            continue
        rejected = path[count:]
        rows += rejected
        owners += [len(shifted)] * len(rejected)
        positions += range(new, new + len(rejected))
        shifted.append(new)
    carried = CarryoverRows(
        output.features[rows].detach(),
        torch.tensor(owners, dtype=torch.long, device=ids.device),
        torch.tensor(positions, dtype=torch.long, device=ids.device),
    )
    return Transitions(
        torch.tensor(shifted, dtype=torch.long, device=ids.device),
        carried,
        accepted,
        output.logits[: len(response.response_ids)],
        len(anchors) - len(shifted),
    )
