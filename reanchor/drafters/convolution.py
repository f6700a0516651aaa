"""DFlash 2's dynamic causal convolution over a block's slots; it knows nothing beyond its block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reanchor.drafters.drafter_config import ConvolutionConfig


def convolve(slots: Tensor, base: Tensor, dynamic: Tensor) -> Tensor:
    """Each channel's own kernel plus its group's, made from the slot itself, over the slots before it.

    slots: [blocks, B, H]; base: [kernel, H]; dynamic: [blocks, B, kernel, groups]
    """
    size = slots.shape[-1] // dynamic.shape[-1]
    out = torch.zeros_like(slots)
    for back in range(len(base)):
        before = F.pad(slots, (0, 0, back, 0))[:, : slots.shape[1]]
        out = out + (base[back] + dynamic[:, :, back].repeat_interleave(size, -1)) * before
    return out


class DynamicConvolution(nn.Module):
    """Wraps a sublayer: `enter` before it, `leave` after it, both with kernels made on entry."""

    def __init__(self, config: ConvolutionConfig, hidden_size: int, block_size: int) -> None:
        super().__init__()
        self.block_size, self.kernel = block_size, config.kernel
        self.base_kernel = nn.Parameter(torch.empty(2, config.kernel, hidden_size))
        outputs = 2 * config.kernel * (hidden_size // config.group)
        self.kernel_projection = nn.Linear(hidden_size, outputs, bias=False)

    def enter(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """slots: [S, H] -> convolved [S, H], the kernels of `leave`"""
        blocks = slots.view(-1, self.block_size, slots.shape[-1])
        dynamic = self.kernel_projection(blocks).view(*blocks.shape[:2], 2, self.kernel, -1)
        return convolve(blocks, self.base_kernel[0], dynamic[:, :, 0]).view_as(slots), dynamic[:, :, 1]

    def leave(self, slots: Tensor, dynamic: Tensor) -> Tensor:
        blocks = slots.view(-1, self.block_size, slots.shape[-1])
        return convolve(blocks, self.base_kernel[1], dynamic).view_as(slots)
