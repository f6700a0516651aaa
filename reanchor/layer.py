"""One transformer layer as plain functions of rows and weights: the target's on the fused forward and the drafter's.

Between `project` and `transform` stands attention, which is the caller's: a compiler sees two graphs for all
layers, whatever attends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.activations import ACT2FN

from reanchor.linear import linear
from reanchor.rotation import rotate

MOST_ROWS = 1024  # of a long prompt through a perceptron at once: its activations are the widest there are


@dataclass(frozen=True)
class LayerShape:
    """What a layer computes with its weights."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    eps: float  # of every norm
    activation: str
    window: int | None = None
    softcap: float | None = None
    kind: str = "full_attention"  # of rotary table and of mask
    value_norm: bool = False
    keys_are_values: bool = False  # values are the projected keys, before norm and rotation

    @property
    def rotated_heads(self) -> int:
        """Heads with a position: queries and keys."""
        return self.heads + self.kv_heads


class Affine(NamedTuple):
    weight: Tensor  # [out, in]
    bias: Tensor | None = None  # [out]


@dataclass(frozen=True)
class LayerWeights:
    """A norm's weight has the model's dtype, or float32 where the family multiplies before it rounds."""

    qkv: Affine  # queries, keys, values
    out: Affine
    gate_up: Affine
    down: Affine
    attention_norm: Tensor  # [H]
    mlp_norm: Tensor  # [H]
    attention_out_norm: Tensor | None = None  # [H]
    mlp_out_norm: Tensor | None = None  # [H]
    head_scale: Tensor | None = None  # [heads + kv heads, head_dim], the norms of queries and keys
    factor: Tensor | None = None  # [1], of the layer's output


def project(
    rows: Tensor,  # [N, H], normed
    weights: LayerWeights,
    shape: LayerShape,
    cosine: Tensor,  # [N, 1, D]
    sine: Tensor,  # [N, 1, D], its first half negative
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [N, heads, D], keys and values [N, kv heads, D] of what enters attention."""
    heads = linear(rows, *weights.qkv).view(len(rows), -1, shape.head_dim)
    rotated_heads = heads[:, : shape.rotated_heads]
    if weights.head_scale is not None:
        rotated_heads = normalize_heads(rotated_heads, weights.head_scale, shape.eps)
    rotated_heads = rotate(rotated_heads, cosine, sine)
    values = (
        heads[:, shape.heads : shape.rotated_heads]
        if shape.keys_are_values
        else heads[:, shape.rotated_heads :]
    )
    if shape.value_norm:
        values = normalize_heads(values, None, shape.eps)
    return rotated_heads[:, : shape.heads], rotated_heads[:, shape.heads :], values


def attention_output_and_mlp(
    hidden: Tensor, attended: Tensor, weights: LayerWeights, shape: LayerShape
) -> Tensor:
    """A layer's output of its input and what its heads attended to. hidden: [N, H]; attended: [N, heads, D]"""
    update = linear(attended.reshape(len(hidden), -1), *weights.out)
    if weights.attention_out_norm is not None:
        update = normalize(update, weights.attention_out_norm, shape.eps)
    hidden = hidden + update
    if len(hidden) <= MOST_ROWS:
        return mlp_block(hidden, weights, shape)
    return torch.cat([mlp_block(rows, weights, shape) for rows in hidden.split(MOST_ROWS)])


def mlp_block(hidden: Tensor, weights: LayerWeights, shape: LayerShape) -> Tensor:
    """A layer's second half, row by row. hidden: [N, H] -> [N, H]"""
    update = mlp(normalize(hidden, weights.mlp_norm, shape.eps), weights, shape)
    if weights.mlp_out_norm is not None:
        update = normalize(update, weights.mlp_out_norm, shape.eps)
    return hidden + update if weights.factor is None else (hidden + update) * weights.factor


def mlp(rows: Tensor, weights: LayerWeights, shape: LayerShape) -> Tensor:
    """[N, H], normed -> [N, H]"""
    gate, up = linear(rows, *weights.gate_up).chunk(2, -1)
    return linear(activation(shape.activation)(gate).mul_(up), *weights.down)


@cache
def activation(name: str) -> Callable[[Tensor], Tensor]:
    return ACT2FN[name]


def normalize(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32 at least and, as in HF's modules, at most."""
    shape = rows.shape[-1:]
    if rows.dtype != weight.dtype:
        return F.rms_norm(rows.float(), shape, weight, eps).to(rows.dtype)
    if rows.dtype is torch.float64:
        return F.rms_norm(rows.float(), shape, None, eps).to(rows.dtype) * weight
    return F.rms_norm(rows, shape, weight, eps)


def normalize_heads(rows: Tensor, scale: Tensor | None, eps: float) -> Tensor:
    """Every head by itself, with a weight of its own or none. rows: [N, heads, D]; scale: [heads, D]"""
    normal = F.rms_norm(rows.float(), rows.shape[-1:], None, eps)
    if scale is None:
        return normal.to(rows.dtype)
    if scale.dtype is torch.float32:
        return (normal * scale).to(rows.dtype)
    return normal.to(rows.dtype) * scale
