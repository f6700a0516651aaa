"""One transformer layer as plain functions of rows and weights, the same for every layer of a model.

Between `project` and `transform` stands attention, which is the caller's: a compiler sees two graphs for all
layers, whatever attends.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from reanchor.linear import linear
from reanchor.rotation import rotate
from reanchor.stack.description import Description, LayerShape
from reanchor.stack.weights import Affine, LayerWeights

MOST_ROWS = 1024  # of a long prompt through a perceptron at once: its activations are the widest there are


def project(
    hidden: Tensor,  # [N, H]
    weights: LayerWeights,
    shape: LayerShape,
    eps: float,
    cosine: Tensor,  # [N, 1, D]
    sine: Tensor,  # [N, 1, D], its first half negative
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [N, heads, D], keys and values [N, kv heads, D] of a layer's input."""
    rows = linear(normalize(hidden, weights.attention_norm, eps), *weights.qkv)
    rows = rows.view(len(hidden), -1, shape.head_dim)
    turned = rows[:, : shape.turned]
    if weights.head_scale is not None:
        turned = normalize_heads(turned, weights.head_scale, eps)
    turned = rotate(turned, cosine, sine)
    values = rows[:, shape.heads : shape.turned] if shape.keys_are_values else rows[:, shape.turned :]
    if shape.value_norm:
        values = normalize_heads(values, None, eps)
    return turned[:, : shape.heads], turned[:, shape.heads :], values


def transform(hidden: Tensor, attended: Tensor, weights: LayerWeights, stack: Description) -> Tensor:
    """A layer's output of its input and what its heads attended to. hidden: [N, H]; attended: [N, heads, D]"""
    update = linear(attended.reshape(len(hidden), -1), *weights.out)
    if weights.attention_out_norm is not None:
        update = normalize(update, weights.attention_out_norm, stack.eps)
    hidden = hidden + update
    if len(hidden) <= MOST_ROWS:
        return perceive(hidden, weights, stack)
    return torch.cat([perceive(rows, weights, stack) for rows in hidden.split(MOST_ROWS)])


def perceive(hidden: Tensor, weights: LayerWeights, stack: Description) -> Tensor:
    """A layer's second half, row by row. hidden: [N, H] -> [N, H]"""
    gate, up = linear(normalize(hidden, weights.mlp_norm, stack.eps), *weights.gate_up).chunk(2, -1)
    update = linear(activate(gate, stack.activation).mul_(up), *weights.down)
    if weights.mlp_out_norm is not None:
        update = normalize(update, weights.mlp_out_norm, stack.eps)
    return hidden + update if weights.factor is None else (hidden + update) * weights.factor


def score(hidden: Tensor, stack: Description, norm: Tensor, head: Affine) -> Tensor:
    """Logits [N, V] of last states [N, H]."""
    logits = linear(normalize(hidden, norm, stack.eps), *head)
    return logits if stack.softcap is None else torch.tanh(logits / stack.softcap) * stack.softcap


def activate(rows: Tensor, name: str) -> Tensor:
    if name == "silu":
        return F.silu(rows)
    return F.gelu(rows, approximate="tanh" if name == "gelu_pytorch_tanh" else "none")


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
