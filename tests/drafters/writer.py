"""Tiny random drafter checkpoints, written as their exporters write them, with the plain facts of each."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

H, INNER, V, HEADS, KV, HD, TARGET_LAYERS = 32, 48, 96, 4, 2, 8, 6
MASK = 95


@dataclass
class Facts:
    """What the oracle is told, by the test and not by the code under test."""

    layers: int = 2
    block: int = 4
    taps: tuple[int, ...] = (0, 2, 4)
    rules: tuple[tuple[bool, int | None], ...] = ((False, None), (False, None))  # causal, window
    theta: float = 10000.0
    eps: float = 1e-6
    bias: bool = False
    shifted: bool = False
    multiplier: float = 1.0
    softcap: float | None = None
    embedding_scale: float = 1.0


@dataclass
class Written:
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    facts: Facts = field(default_factory=Facts)

    def save(self, folder: Path, shards: int = 1) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        names = sorted(self.tensors)
        if shards == 1:
            save_file(self.tensors, folder / "model.safetensors")
            return folder
        weight_map = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            save_file({name: self.tensors[name] for name in names[shard::shards]}, folder / file)
            weight_map.update(dict.fromkeys(names[shard::shards], file))
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder


def tiny_target(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = {
        "hidden_size": H,
        "intermediate_size": INNER,
        "vocab_size": V,
        "num_hidden_layers": TARGET_LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
    }
    return LlamaForCausalLM(LlamaConfig(**(shape | changes))).double().eval()


def body_tensors(facts: Facts, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def weight(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3

    def norm(size: int) -> Tensor:
        return 1 + torch.randn(size, generator=generator, dtype=torch.float64) * 0.2

    tensors = {
        "fc.weight": weight(H, len(facts.taps) * H),
        "hidden_norm.weight": norm(H),
        "norm.weight": norm(H),
    }
    for index in range(facts.layers):
        at = f"layers.{index}."
        for name, rows, columns in (
            ("q", HEADS * HD, H),
            ("k", KV * HD, H),
            ("v", KV * HD, H),
            ("o", H, HEADS * HD),
        ):
            tensors[f"{at}self_attn.{name}_proj.weight"] = weight(rows, columns)
            if facts.bias:
                tensors[f"{at}self_attn.{name}_proj.bias"] = weight(rows)
        tensors |= {
            f"{at}self_attn.q_norm.weight": norm(HD),
            f"{at}self_attn.k_norm.weight": norm(HD),
            f"{at}input_layernorm.weight": norm(H),
            f"{at}post_attention_layernorm.weight": norm(H),
            f"{at}mlp.gate_proj.weight": weight(INNER, H),
            f"{at}mlp.up_proj.weight": weight(INNER, H),
            f"{at}mlp.down_proj.weight": weight(H, INNER),
        }
    return tensors


def dflash(facts: Facts | None = None, **config: Any) -> Written:
    """z-lab's first vintage, block_size at the top; later keys come by `config`."""
    facts = facts or Facts()
    written = {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        "hidden_size": H,
        "intermediate_size": INNER,
        "num_hidden_layers": facts.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": HD,
        "hidden_act": "silu",
        "rms_norm_eps": facts.eps,
        "attention_bias": facts.bias,
        "vocab_size": V,
        "max_position_embeddings": 512,
        "rope_theta": facts.theta,
        "num_target_layers": TARGET_LAYERS,
        "block_size": facts.block,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(facts.taps)},
    }
    return Written(written | config, body_tensors(facts), facts)
