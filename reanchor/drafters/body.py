"""The drafter's transformer: slots read target features and each other; it knows no token and no cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from reanchor.drafters.config import DrafterConfig
from reanchor.drafters.convolution import DynamicConvolution
from reanchor.drafters.rotary import Rotary
from reanchor.drafters.visibility import Sight
from reanchor.linear import Linear
from reanchor.rotation import rotate

Angles = tuple[Tensor, Tensor]  # cosines and signed sines, each [rows, 1, hd]
# a layer's new keys and values, each [rows, kv heads, hd] -> all it attends to, each [kv heads, T, hd]
Store = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | Sight, scale: float) -> Tensor:
    """Grouped-query attention: by the attention room where rows come from a cache, differentiable under a mask.

    A group's heads are folded into query rows so that keys are never repeated.
    queries: [S, heads, hd]; keys, values: [kv heads, T, hd]; mask: [S * groups, T] -> [S, heads * hd]
    """
    if isinstance(mask, Sight):
        return mask.attend(queries, keys, values, scale).flatten(1)
    slots, heads, size = queries.shape
    folded = queries.view(slots, len(keys), -1, size).transpose(0, 1).reshape(1, len(keys), -1, size)
    out = F.scaled_dot_product_attention(folded, keys[None], values[None], mask, scale=scale)
    return out.view(len(keys), slots, -1, size).transpose(0, 1).reshape(slots, heads * size)


class Attention(nn.Module):
    """Queries come from the slots alone; keys and values from context rows and slots."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim, self.gemma = config.head_dim, config.gemma
        self.scale = 1.0 if config.gemma else config.head_dim**-0.5
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, queries, bias=config.bias)
        self.k_proj = Linear(config.hidden_size, keys, bias=config.bias)
        self.v_proj = None if config.shared_kv else Linear(config.hidden_size, keys, bias=config.bias)
        self.o_proj = Linear(queries, config.hidden_size, bias=config.bias)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.eps)

    def forward(
        self, slots: Tensor, context: Tensor, angles: Angles, store: Store, mask: Tensor | Sight
    ) -> Tensor:
        """slots: [S, H]; context: [R, H] rows new to the keys; angles: of R + S rows -> [S, H]"""
        rows = torch.cat([context, slots])
        behind = (angles[0][len(context) :], angles[1][len(context) :])
        queries = rotate(self.q_norm(self.split(self.q_proj(slots))), *behind)
        projected = self.split(self.k_proj(rows))
        values = projected if self.v_proj is None else self.split(self.v_proj(rows))
        if self.gemma:
            values = F.rms_norm(values, values.shape[-1:], eps=self.k_norm.eps)
        keys = rotate(self.k_norm(projected), *angles)
        return self.o_proj(attend(queries, *store(keys, values), mask, self.scale))

    def split(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), -1, self.head_dim)  # [rows, heads, hd]


class Perceptron(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = ACT2FN[config.activation]

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    """Qwen3's layer. Context rows give keys and values only, and enter without the input norm."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.mlp = Perceptron(config)

    def forward(
        self, hidden: Tensor, context: Tensor, angles: Angles, store: Store, mask: Tensor | Sight
    ) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), context, angles, store, mask)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class ConvolvedLayer(Layer):
    """DFlash 2's layer: a convolution over the block's slots around each sublayer."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        assert config.convolution is not None
        self.attention_conv = DynamicConvolution(config.convolution, config.hidden_size, config.block_size)
        self.mlp_conv = DynamicConvolution(config.convolution, config.hidden_size, config.block_size)

    def forward(
        self, hidden: Tensor, context: Tensor, angles: Angles, store: Store, mask: Tensor | Sight
    ) -> Tensor:
        slots, kernels = self.attention_conv.enter(self.input_layernorm(hidden))
        out = self.self_attn(slots, context, angles, store, mask)
        hidden = hidden + self.attention_conv.leave(out, kernels)
        slots, kernels = self.mlp_conv.enter(self.post_attention_layernorm(hidden))
        return hidden + self.mlp_conv.leave(self.mlp(slots), kernels)


class GemmaLayer(Layer):
    """Gemma 4's dense layer: both sublayers normed before and after, the whole scaled."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.pre_feedforward_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.post_feedforward_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.layer_scalar = nn.Buffer(torch.ones(1))

    def forward(
        self, hidden: Tensor, context: Tensor, angles: Angles, store: Store, mask: Tensor | Sight
    ) -> Tensor:
        out = self.self_attn(self.input_layernorm(hidden), context, angles, store, mask)
        hidden = hidden + self.post_attention_layernorm(out)
        out = self.mlp(self.pre_feedforward_layernorm(hidden))
        return (hidden + self.post_feedforward_layernorm(out)) * self.layer_scalar


def make_layer(config: DrafterConfig) -> Layer:
    if config.gemma:
        return GemmaLayer(config)
    return ConvolvedLayer(config) if config.convolution else Layer(config)


class Body(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width = len(config.tap_layers) * config.target_hidden_size  # Dc
        self.fc = Linear(width, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.layers = nn.ModuleList(make_layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.rotary = Rotary(config)

    def project(self, features: Tensor) -> Tensor:
        """Target features as every layer's context reads them. [R, Dc] -> [R, H]"""
        return self.hidden_norm(self.fc(features))

    def forward(
        self,
        hidden: Tensor,
        context: Tensor,
        angles: Angles,
        stores: Sequence[Store],
        masks: Sequence[Tensor | Sight],
    ) -> Tensor:
        """Embedded slots [S, H] to final states [S, H]; a store and a mask for each layer."""
        for layer, store, mask in zip(self.layers, stores, masks, strict=True):
            hidden = layer(hidden, context, angles, store, mask)
        return self.norm(hidden)
