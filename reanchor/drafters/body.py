"""The drafter's transformer: slots read target features and each other; it knows no token and no cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from reanchor.drafters.convolution import DynamicConvolution
from reanchor.drafters.drafter_config import DrafterConfig
from reanchor.drafters.drafter_rotary import Rotary
from reanchor.layer import Affine, LayerShape, LayerWeights, attention_output_and_mlp, mlp, normalize, project
from reanchor.linear import apply, linear, matrix_of

Angles = tuple[Tensor, Tensor]  # cosines and signed sines, each [rows, 1, hd]
# a layer's new keys and values, each [rows, kv heads, hd] -> all it attends to, each [kv heads, T, hd]
Store = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# what a layer reads with one product -> its parts' names in checkpoints, in order
PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
}


class BlockAttention(Protocol):
    """What a layer's slots see, and what attends by it."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """queries: [S, heads, hd]; keys, values: [kv heads, T, hd] -> [S, heads, hd]"""


class DrafterLayer(nn.Module):
    """Qwen3's layer. Context rows give keys and values only, and enter without the input norm.

    Its matrices are fused here and apart, under their own names, in state dicts.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, size, inner = config.hidden_size, config.head_dim, config.intermediate_size
        queries, keys = config.heads * size, config.kv_heads * size
        self.sizes = {
            "qkv": (queries, keys) if config.shared_kv else (queries, keys, keys),
            "out": (hidden,),
            "gate_up": (inner, inner),
            "down": (hidden,),
            "q_norm": (size,),
            "k_norm": (size,),
        }
        self.shape = LayerShape(
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=size,
            scale=1.0 if config.gemma else size**-0.5,
            eps=config.eps,
            activation=config.activation,
            value_norm=config.gemma,
            keys_are_values=config.shared_kv,
        )
        self.input_layernorm = nn.RMSNorm(hidden, eps=config.eps)
        self.qkv = nn.Linear(hidden, sum(self.sizes["qkv"]), bias=config.bias)
        self.q_norm, self.k_norm = nn.RMSNorm(size, eps=config.eps), nn.RMSNorm(size, eps=config.eps)
        self.out = nn.Linear(queries, hidden, bias=config.bias)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=config.eps)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.register_state_dict_post_hook(split)
        self.register_load_state_dict_pre_hook(join)

    def weights(self) -> LayerWeights:
        """Its parameters as the layer function takes them."""
        return LayerWeights(
            qkv=affine(self.qkv),
            out=affine(self.out),
            gate_up=affine(self.gate_up),
            down=affine(self.down),
            attention_norm=self.input_layernorm.weight,
            mlp_norm=self.post_attention_layernorm.weight,
            head_scale=torch.cat(
                [
                    self.q_norm.weight.expand(self.shape.heads, -1),
                    self.k_norm.weight.expand(self.shape.kv_heads, -1),
                ]
            ),
        )

    def forward(
        self, hidden: Tensor, context: Tensor, angles: Angles, store: Store, sees: BlockAttention
    ) -> Tensor:
        """hidden: [S, H]; context: [R, H] rows new to the keys; angles: of R + S rows -> [S, H]"""
        weights = self.weights()
        slots = normalize(hidden, weights.attention_norm, self.shape.eps)
        attended = self.attend(slots, context, angles, store, sees, weights)
        return attention_output_and_mlp(hidden, attended, weights, self.shape)

    def attend(
        self,
        slots: Tensor,
        context: Tensor,
        angles: Angles,
        store: Store,
        sees: BlockAttention,
        weights: LayerWeights,
    ) -> Tensor:
        """One product makes queries of context rows, too, which nobody reads: they are few, or a prompt's, once.

        -> [S, heads, hd]
        """
        queries, keys, values = project(torch.cat([context, slots]), weights, self.shape, *angles)
        return sees.attend(queries[len(context) :], *store(keys, values), self.shape.scale)


class ConvolvedLayer(DrafterLayer):
    """DFlash 2's layer: a convolution over the block's slots around each sublayer."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        assert config.convolution is not None
        self.attention_conv = DynamicConvolution(config.convolution, config.hidden_size, config.block_size)
        self.mlp_conv = DynamicConvolution(config.convolution, config.hidden_size, config.block_size)

    def forward(
        self, hidden: Tensor, context: Tensor, angles: Angles, store: Store, sees: BlockAttention
    ) -> Tensor:
        weights = self.weights()
        slots, kernels = self.attention_conv.enter(normalize(hidden, weights.attention_norm, self.shape.eps))
        attended = self.attend(slots, context, angles, store, sees, weights)
        hidden = hidden + self.attention_conv.leave(linear(attended.flatten(1), *weights.out), kernels)
        slots, kernels = self.mlp_conv.enter(normalize(hidden, weights.mlp_norm, self.shape.eps))
        return hidden + self.mlp_conv.leave(mlp(slots, weights, self.shape), kernels)


class GemmaLayer(DrafterLayer):
    """Gemma 4's dense layer: both sublayers normed before and after, the whole scaled."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.pre_feedforward_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.post_feedforward_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.layer_scalar = nn.Buffer(torch.ones(1))

    def weights(self) -> LayerWeights:
        return replace(
            super().weights(),
            attention_out_norm=self.post_attention_layernorm.weight,
            mlp_norm=self.pre_feedforward_layernorm.weight,
            mlp_out_norm=self.post_feedforward_layernorm.weight,
            factor=self.layer_scalar,
        )


def affine(module: nn.Linear) -> Affine:
    return Affine(*matrix_of(module))


def split(layer: DrafterLayer, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    """In a layer's state dict, put the parts of each fused matrix under their own names, as views."""
    for fused, names in PARTS.items():
        for kind in ("weight", "bias"):
            whole = state.pop(f"{prefix}{fused}.{kind}", None)
            if whole is not None:
                for name, part in zip(names, whole.split(layer.sizes[fused]), strict=False):
                    state[f"{prefix}{name}.{kind}"] = part


def join(layer: DrafterLayer, state: dict[str, Any], prefix: str, *_rest: Any) -> None:
    """The other way, before loading; what lacks a part is left for the loader to complain about."""
    for fused, names in PARTS.items():
        for kind in ("weight", "bias"):
            parts = [f"{prefix}{name}.{kind}" for name in names[: len(layer.sizes[fused])]]
            if all(part in state for part in parts):
                found = [state.pop(part) for part in parts]
                state[f"{prefix}{fused}.{kind}"] = torch.cat(found) if len(found) > 1 else found[0]


def make_layer(config: DrafterConfig) -> DrafterLayer:
    if config.gemma:
        return GemmaLayer(config)
    return ConvolvedLayer(config) if config.convolution else DrafterLayer(config)


class DrafterBody(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width = len(config.tap_layers) * config.target_hidden_size  # Dc
        self.eps = config.eps
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.layers = nn.ModuleList(make_layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.rotary = Rotary(config)

    def matrices(self) -> Iterator[nn.Linear]:
        """Those that `linear` multiplies by."""
        yield self.fc
        for layer in self.layers:
            assert isinstance(layer, DrafterLayer)
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)

    def project(self, features: Tensor) -> Tensor:
        """Target features as every layer's context reads them. [R, Dc] -> [R, H]"""
        return normalize(apply(self.fc, features), self.hidden_norm.weight, self.eps)

    def forward(
        self,
        hidden: Tensor,
        context: Tensor,
        angles: Angles,
        stores: Sequence[Store],
        sights: Sequence[BlockAttention],
    ) -> Tensor:
        """Embedded slots [S, H] to final states [S, H]; a store and a sight for each layer."""
        for layer, store, sees in zip(self.layers, stores, sights, strict=True):
            hidden = layer(hidden, context, angles, store, sees)
        return normalize(hidden, self.norm.weight, self.eps)
