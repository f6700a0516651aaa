"""Tiny models of every described family, with what else their configs may hold switched on."""

from __future__ import annotations

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.tiny import FAMILIES, MIX, SHAPE


def rope(kind: str, **more: object) -> dict[str, object]:
    return {"rope_type": kind, "rope_theta": 10000.0, **more}


LLAMA3 = rope(
    "llama3",
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
LINEAR = rope("linear", factor=4.0)
VARIANTS = {
    **FAMILIES,
    "llama tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "llama biased": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)),
    "llama llama3": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=LLAMA3)),
    "llama linear": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=LINEAR)),
    "llama one head": lambda: LlamaForCausalLM(LlamaConfig(**{**SHAPE, "num_key_value_heads": 1})),
    "llama gelu": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, hidden_act="gelu")),
    "mistral wide": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None)),
    "qwen2 full": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "qwen3 yarn": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, rope_parameters=YARN, attention_bias=True)),
    "qwen3 sliding": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SHAPE, use_sliding_window=True, sliding_window=7, layer_types=MIX)
    ),
    "gemma2 tied": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            attn_implementation="eager", **SHAPE, sliding_window=7, layer_types=MIX, query_pre_attn_scalar=24
        )
    ),
    "gemma2 uncapped": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            attn_implementation="eager",
            **SHAPE,
            sliding_window=7,
            layer_types=MIX,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
        )
    ),
    "gemma3 ropes": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SHAPE,
            sliding_window=7,
            layer_types=MIX,
            final_logit_softcapping=30.0,
            rope_parameters={"full_attention": LINEAR, "sliding_attention": rope("default")},
        )
    ),
}

DENSE = {"hidden_size_per_layer_input": 0, "sliding_window": 7, "layer_types": [*MIX[:2], "full_attention"]}
VARIANTS["gemma4"] = lambda: Gemma4ForCausalLM(Gemma4TextConfig(**SHAPE, **DENSE, global_head_dim=16))
VARIANTS["gemma4 keys as values"] = lambda: Gemma4ForCausalLM(
    Gemma4TextConfig(
        **SHAPE,
        **DENSE,
        global_head_dim=16,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        final_logit_softcapping=30.0,
    )
)


def variant(name: str, dtype: torch.dtype = torch.float64, seed: int = 1) -> PreTrainedModel:
    """A model whose norms and biases are random too, so that none can be left out unseen."""
    torch.manual_seed(seed)
    model = VARIANTS[name]().to(dtype).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter.data, mean=0.5, std=0.3)
    for name_, buffer in model.named_buffers():
        if name_.endswith("layer_scalar"):
            torch.nn.init.normal_(buffer, mean=0.8, std=0.1)
    model.generation_config.eos_token_id = None
    return model
