"""Hybrid targets small enough for any CPU, one of every family that we verify trees of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from tests.tiny import SHAPE, VOCAB

# Widths are as odd as they may be: head sizes of keys and values differ, value heads share key heads.
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
}
MIXED = ["linear_attention", "full_attention", "linear_attention"]
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 6,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}


def build(name: str, **options: Any) -> Callable[[], PreTrainedModel]:
    def make() -> PreTrainedModel:
        config = getattr(transformers, f"{name}{'Text' if name.startswith('Qwen3_5') else ''}Config")
        shape = {key: value for key, value in SHAPE.items() if key not in options.get("without", ())}
        return getattr(transformers, f"{name}ForCausalLM")(
            config(**{**shape, **{key: value for key, value in options.items() if key != "without"}})
        )

    return make


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3_next": build("Qwen3Next", layer_types=MIXED, **DELTA, **EXPERTS),
    "qwen3_5": build("Qwen3_5", layer_types=MIXED, **DELTA),
    "qwen3_5_moe": build("Qwen3_5Moe", layer_types=MIXED, **DELTA, **EXPERTS),
    "olmo_hybrid": build(
        "OlmoHybrid",
        layer_types=MIXED,
        **{**DELTA, "linear_num_key_heads": 4},
        linear_allow_neg_eigval=True,
        without=("head_dim",),
    ),
    "lfm2": build(
        "Lfm2", layer_types=["conv", "full_attention", "conv"], conv_L_cache=3, block_multiple_of=8
    ),
    "lfm2_moe": build(
        "Lfm2Moe",
        layer_types=["conv", "full_attention", "conv"],
        conv_L_cache=3,
        num_dense_layers=1,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    ),
    "granitemoehybrid": build(
        "GraniteMoeHybrid",
        layer_types=MIXED,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=16,
        **MAMBA,
    ),
    "bamba": build("Bamba", attn_layer_indices=[1], **MAMBA),
    "nemotron_h": build(
        "NemotronH",
        layers_block_type=["linear_attention", "moe", "full_attention", "linear_attention", "mlp"],
        mamba_num_heads=8,
        mamba_head_dim=8,
        n_groups=2,
        ssm_state_size=6,
        conv_kernel=4,
        chunk_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=16,
        without=("num_hidden_layers",),
    ),
    "falcon_h1": build("FalconH1", mamba_d_ssm=64, **MAMBA),
    "mamba2": build(
        "Mamba2",
        num_heads=8,
        state_size=6,
        n_groups=2,
        conv_kernel=4,
        expand=2,
        chunk_size=16,
        without=("num_attention_heads", "num_key_value_heads", "intermediate_size"),
    ),
}
DENSE = ("qwen3_5", "olmo_hybrid", "lfm2", "bamba", "falcon_h1")


def tiny_hybrid(family: str, seed: int = 1, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = FAMILIES[family]().to(dtype).eval().requires_grad_(False)
    if dtype == torch.float64 and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # its grouped product is none of double precision
    for name, parameter in model.named_parameters():
        # as drawn, decays and gates would be the same in every head
        if name.rsplit(".", 1)[-1] in ("A_log", "dt_bias", "D"):
            parameter.normal_(0.0, 0.5)
    model.generation_config.eos_token_id = None
    assert model.config.get_text_config().vocab_size == VOCAB
    return model
