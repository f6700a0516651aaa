"""The drafter's transformer: slots read target features and each other; it knows no token and no cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reanchor.drafters.config import DrafterConfig
from reanchor.drafters.rotary import Rotary, rotate

# (layer, its new keys, its new values), each [rows, kv heads, hd] -> all keys and values to attend to
Store = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Grouped-query attention, a group's heads folded into query rows so that keys are never repeated.

    queries: [S, heads, hd]; keys, values: [kv heads, T, hd]; mask: [S * groups, T] -> [S, heads * hd]
    """
    slots, heads, size = queries.shape
    folded = queries.view(slots, len(keys), -1, size).transpose(0, 1).reshape(1, len(keys), -1, size)
    out = F.scaled_dot_product_attention(folded, keys[None], values[None], mask, scale=scale)
    return out.view(len(keys), slots, -1, size).transpose(0, 1).reshape(slots, heads * size)


class Attention(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.bias)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.eps)

    def split(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), -1, self.head_dim)  # [rows, heads, hd]


class Layer(nn.Module):
    """Context rows give keys and values only, and enter without the layer's input norm."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.mlp = Perceptron(config)

    def forward(
        self,
        hidden: Tensor,
        context: Tensor,
        rotary: tuple[Tensor, Tensor],
        store: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        mask: Tensor | None,
    ) -> Tensor:
        """hidden: [S, H] slots; context: [R, H] rows new to the keys; rotary: of R + S rows"""
        attention = self.self_attn
        slots = self.input_layernorm(hidden)
        rows = torch.cat([context, slots])
        slot_rotary = (rotary[0][len(context) :], rotary[1][len(context) :])
        queries = rotate(attention.q_norm(attention.split(attention.q_proj(slots))), slot_rotary)
        keys = rotate(attention.k_norm(attention.split(attention.k_proj(rows))), rotary)
        values = attention.split(attention.v_proj(rows))
        out = attend(queries, *store(keys, values), mask, attention.head_dim**-0.5)
        hidden = hidden + attention.o_proj(out)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Perceptron(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Body(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(len(config.tap_layers) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.rotary = Rotary(config)

    def project(self, features: Tensor) -> Tensor:
        """Target features as every layer's context reads them. [R, Dc] -> [R, H]"""
        return self.hidden_norm(self.fc(features))

    def forward(
        self,
        hidden: Tensor,
        context: Tensor,
        rotary: tuple[Tensor, Tensor],
        store: Store,
        masks: Sequence[Tensor | None],
    ) -> Tensor:
        """Embedded slots [S, H] to final states [S, H]; `masks`: one a layer."""
        for index, (layer, mask) in enumerate(zip(self.layers, masks, strict=True)):
            hidden = layer(
                hidden, context, rotary, lambda keys, values, at=index: store(at, keys, values), mask
            )
        return self.norm(hidden)
