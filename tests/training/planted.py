"""A target whose next token is the one seven before it, made by hand, and a drafter that cannot see so far.

The target finds that token by position alone, so its states along a rejected branch still tell the right future
tokens: a drafter with a window of three learns them from carried rows, and from nothing else.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

V, MASK, PERIOD, H, HD = 24, 23, 7, 48, 32
BLOCK = 6
THETA = 60.0


def planted_target() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=H,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=HD,
        attention_bias=True,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=False,
        pad_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    model.generation_config.eos_token_id = None
    for parameter in model.parameters():
        parameter.zero_()
    layer = model.model.layers[0]
    for norm in (layer.input_layernorm, layer.post_attention_layernorm, model.model.norm):
        norm.weight.fill_(1.0)
    model.model.embed_tokens.weight[:, :V] = torch.eye(V) * 3
    attention = layer.self_attn
    # queries and keys that do not look at the text: the score peaks where the key stands PERIOD - 1 before
    half = HD // 2
    frequencies = THETA ** (-torch.arange(half) / half)
    turn = frequencies * (PERIOD - 1)
    attention.k_proj.bias[:half] = 6.0
    attention.q_proj.bias[:half] = 6.0 * torch.cos(turn)
    attention.q_proj.bias[half:] = -6.0 * torch.sin(turn)
    attention.v_proj.weight[:V, :V] = torch.eye(V)
    attention.o_proj.weight[V : 2 * V, :V] = torch.eye(V)
    model.lm_head.weight[:, V : 2 * V] = torch.eye(V) * 4
    return model


def texts(count: int, new: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Prompts of one period, and what the target makes of them."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(MASK) for _ in range(PERIOD)] for _ in range(count)]
    return [(prompt, [prompt[place % PERIOD] for place in range(new)]) for prompt in prompts]


def write_texts(path: Path, count: int, new: int = 36, seed: int = 0) -> Path:
    rows = ({"prompt_ids": p, "response_ids": r} for p, r in texts(count, new, seed))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_drafter(folder: Path, seed: int = 0) -> Path:
    """One layer that sees two positions to either side."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": H,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "vocab_size": V,
        "max_position_embeddings": 256,
        "rope_theta": 100.0,
        "num_target_layers": 1,
        "block_size": BLOCK,
        "layer_types": ["sliding_attention"],
        "sliding_window": 3,
        "is_causal": False,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)

    def weight(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    at = "layers.0."
    tensors = {
        "fc.weight": weight(H, H),
        "hidden_norm.weight": torch.ones(H),
        "norm.weight": torch.ones(H),
        f"{at}self_attn.q_proj.weight": weight(32, H),
        f"{at}self_attn.k_proj.weight": weight(16, H),
        f"{at}self_attn.v_proj.weight": weight(16, H),
        f"{at}self_attn.o_proj.weight": weight(H, 32),
        f"{at}self_attn.q_norm.weight": torch.ones(16) * 3,
        f"{at}self_attn.k_norm.weight": torch.ones(16),
        f"{at}input_layernorm.weight": torch.ones(H),
        f"{at}post_attention_layernorm.weight": torch.ones(H),
        f"{at}mlp.gate_proj.weight": weight(64, H),
        f"{at}mlp.up_proj.weight": weight(64, H),
        f"{at}mlp.down_proj.weight": weight(H, 64),
    }
    save_file(tensors, folder / "model.safetensors")
    return folder
