"""Rotary embedding as both stacks apply it: half a roll and a signed sine. It knows no model and no position."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """heads: [N, heads, D]; cosine, signed sine: [N, 1, D]"""
    return torch.addcmul(heads * cosine, heads.roll(heads.shape[-1] // 2, -1), sine)


def signed(cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """[1, P, D] -> [P, 1, D], the sine's first half negated: half a roll then stands for HF's rotation."""
    lower, upper = sine[0].chunk(2, -1)
    return cosine[0][:, None].contiguous(), torch.cat([-lower, upper], -1)[:, None]
