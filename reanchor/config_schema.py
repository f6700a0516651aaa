"""Is a config one that a model can be built of? Judged before any library sees it; it knows no architecture.

Bounds lie far beyond every published model: what they refuse would only exhaust memory or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

SIZES = {  # the largest value of each; a list gives one a layer
    "num_hidden_layers": 1 << 12,
    "n_layer": 1 << 12,
    "num_layers": 1 << 12,
    "num_target_layers": 1 << 12,
    "vocab_size": 1 << 24,
    "draft_vocab_size": 1 << 24,
    "hidden_size": 1 << 18,
    "target_hidden_size": 1 << 18,
    "n_embd": 1 << 18,
    "intermediate_size": 1 << 22,
    "num_attention_heads": 1 << 14,
    "n_head": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 14,
    "global_head_dim": 1 << 14,
    "num_global_key_value_heads": 1 << 14,
    "max_position_embeddings": 1 << 31,
    "n_positions": 1 << 31,
    "original_max_position_embeddings": 1 << 31,
    "sliding_window": 1 << 31,
    "block_size": 1 << 12,
    "markov_rank": 1 << 16,
    "emb_dim": 1 << 16,
    "logits_correction_emb_dim": 1 << 16,
    "gru_hidden_dim": 1 << 16,
    "selector_rank": 1 << 16,
    "selector_top_k": 1 << 16,
    "conv_kernel_size": 1 << 10,
    "conv_group_size": 1 << 18,
}
MAY_BE_ZERO = {"markov_rank", "sliding_window"}
NUMBERS = {  # lowest value, and whether it may be that
    "rms_norm_eps": (0.0, True),
    "layer_norm_eps": (0.0, True),
    "layer_norm_epsilon": (0.0, True),
    "norm_eps": (0.0, True),
    "rope_theta": (0.0, False),
    "rope_local_base_freq": (0.0, False),
    "factor": (0.0, False),
    "partial_rotary_factor": (0.0, False),
    "attention_factor": (0.0, False),
    "final_logit_softcapping": (0.0, False),
    "attn_logit_softcapping": (0.0, False),
    "query_pre_attn_scalar": (0.0, False),
    "input_embedding_scale": (float("-inf"), False),
    "output_multiplier": (float("-inf"), False),
    "logit_scale": (float("-inf"), False),
    "initializer_range": (0.0, True),
}
COUNTS = {
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "top_k",
    "num_beams",
    "num_return_sequences",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
}
SHARES = {
    "temperature",
    "top_p",
    "min_p",
    "top_h",
    "typical_p",
    "repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
}
ASKED = {"do_sample", "use_cache", "output_scores", "output_logits", "return_dict_in_generate"}
TEXTS = {
    "model_type",
    "hidden_act",
    "hidden_activation",
    "torch_dtype",
    "dtype",
    "rope_type",
    "markov_head_type",
}
SWITCHES = {
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "use_sliding_window",
    "use_cache",
    "attention_k_eq_v",
}
INNER = (
    "text_config",
    "vision_config",
    "audio_config",
    "rope_parameters",
    "rope_scaling",
    "dflash_config",
    "transformer_layer_config",
    "full_attention",
    "sliding_attention",
)
PRECISIONS = ("float32", "float16", "bfloat16", "float64", "auto")


def check_config(config: Mapping[str, Any], whose: str = "it", inside: str = "") -> None:
    """ValueError naming the key of a config, its value and what it may be. whose: like "the target 'x'"."""
    for name, value in config.items():
        if value is None:
            continue
        said = trouble_of(name, value)
        if said:
            raise ValueError(
                f"{whose} has {inside}{name} {shown(value)} in its config: {said}; restore config.json, or fetch it"
            )
        if name in INNER:
            check_config(value, whose, f"{inside}{name}.")
    check_heads(config, whose)


def check_generation(config: Mapping[str, Any]) -> None:
    """The same of a generation config: what is left in it reaches processors and criteria as it is."""
    for name, value in config.items():
        said = None if value is None else generation_trouble(name, value)
        if said:
            raise ValueError(
                f"its generation config has {name} {shown(value)}: {said}; restore generation_config.json, or delete it"
            )


def generation_trouble(name: str, value: Any) -> str | None:
    if name.endswith("_token_id"):
        several = value if isinstance(value, list) and value else [value]
        ids = all(isinstance(each, int) and not isinstance(each, bool) for each in several)
        return None if ids and all(-1 <= each < 1 << 31 for each in several) else "it must be token ids"
    if name in COUNTS:
        return size_trouble(value, 1 << 31, 0) if not isinstance(value, list) else "it must be a whole number"
    if name in SHARES:
        return number_trouble(value, 0.0, True)
    return "it must be true or false" if name in ASKED and not isinstance(value, bool) else None


def trouble_of(name: str, value: Any) -> str | None:
    if name in SIZES:
        return size_trouble(value, SIZES[name], 0 if name in MAY_BE_ZERO else 1)
    if name in NUMBERS:
        return number_trouble(value, *NUMBERS[name])
    if name in INNER and not isinstance(value, Mapping):
        return "it must hold keys of its own"
    if name in TEXTS and not (isinstance(value, str) and len(value) < 200):
        return "it must be a word"
    if name in ("torch_dtype", "dtype") and str(value).removeprefix("torch.") not in PRECISIONS:
        return f"it must be one of {', '.join(PRECISIONS)}"
    if name in SWITCHES and not isinstance(value, bool):
        return "it must be true or false"
    if name in ("architectures", "layer_types") and not is_words(value):
        return "it must be a list of words"
    return None


def is_words(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 1 << 12 and all(isinstance(each, str) for each in value)


def size_trouble(value: Any, most: int, least: int) -> str | None:
    several = value if isinstance(value, list) and 0 < len(value) <= SIZES["num_hidden_layers"] else [value]
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in several)
    if whole and all(least <= each <= most for each in several):
        return None
    return f"it must be a whole number from {least} to {most}"


def number_trouble(value: Any, lowest: float, included: bool) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "it must be a number"
    finite = abs(value) < 1 << 100 and isfinite(value)
    if finite and (value > lowest or included and value == lowest):
        return None
    bound = "" if lowest == float("-inf") else f", {'at least' if included else 'above'} {lowest:g}"
    return f"it must be a finite number{bound}"


def check_heads(config: Mapping[str, Any], whose: str) -> None:
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        raise ValueError(
            f"{whose} has {heads} attention heads on {groups} key-value heads in its config, which don't divide them; "
            "restore config.json, or fetch it again"
        )


def shown(value: Any) -> str:
    """Short, whatever it is: a number may have a thousand digits."""
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return f"of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."
