"""From a checkpoint as written to the description of a block drafter; it builds nothing."""

from __future__ import annotations

from typing import Any

from reanchor.drafters.checkpoint import Checkpoint
from reanchor.drafters.config import DrafterConfig, LayerRule
from reanchor.drafters.keys import Keys

ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta")


def recognise(checkpoint: Checkpoint) -> DrafterConfig:
    refuse_foreign(checkpoint)
    keys = Keys(checkpoint.config, "dflash_config")
    layers, heads = keys.integer("num_hidden_layers"), keys.integer("num_attention_heads")
    hidden = keys.integer("hidden_size")
    return DrafterConfig(
        dialect="dflash",
        hidden_size=hidden,
        intermediate_size=keys.integer("intermediate_size"),
        heads=heads,
        kv_heads=keys.integer("num_key_value_heads", heads),
        head_dim=keys.integer("head_dim", checkpoint.shapes["layers.0.self_attn.q_norm.weight"][0]),
        eps=float(keys.get("rms_norm_eps", 1e-6)),
        bias=bool(keys.get("attention_bias", False)),
        vocab_size=keys.integer("vocab_size"),
        block_size=block_size(keys),
        mask_token_id=mask_token(keys),
        tap_layers=taps(keys, layers),
        target_layers=keys.get("num_target_layers"),
        rules=layer_rules(keys, layers),
        rope=rope_parameters(keys),
        max_positions=keys.integer("max_position_embeddings", 32768),
        embedding_scale=float(keys.get("input_embedding_scale", 1.0)),
        output_multiplier=float(keys.get("output_multiplier", 1.0)),
        softcap=keys.get("final_logit_softcapping"),
    )


def refuse_foreign(checkpoint: Checkpoint) -> None:
    where = repr(str(checkpoint.folder))
    if "quantization_config" in checkpoint.config or "compression_config" in checkpoint.config:
        raise ValueError(
            f"{where} is a quantised drafter: its layout is not supported; use the bf16 checkpoint"
        )
    odd = sorted({kind for kind in checkpoint.dtypes.values() if kind not in ("F64", "F32", "F16", "BF16")})
    if odd:
        raise ValueError(
            f"{where} holds {', '.join(odd)} tensors, a quantised drafter: use the bf16 checkpoint"
        )
    needed = ("fc.weight", "hidden_norm.weight", "layers.0.self_attn.q_norm.weight")
    absent = [name for name in needed if name not in checkpoint.shapes]
    if absent:
        raise ValueError(
            f"{where} is not a DFlash-family drafter: it has no {', '.join(absent)}; "
            "is this the target's folder rather than the drafter's?"
        )


def block_size(keys: Keys) -> int:
    size = keys.integer("block_size", 16)
    if size < 2:
        raise ValueError(f"block_size must be at least 2 (the anchor and one proposal), got {size}")
    return size


def mask_token(keys: Keys) -> int:
    if keys.get("mask_token_id") is None:
        raise ValueError(
            "the drafter's config has no mask_token_id, and any guess would draft badly: add the id it was "
            "trained with to config.json (under dflash_config)"
        )
    return keys.integer("mask_token_id")


def taps(keys: Keys, layers: int) -> tuple[int, ...]:
    listed = keys.get("target_layer_ids")
    if listed is None:  # the first vintage spaced them by rule
        last = keys.integer("num_target_layers") - 3
        if layers == 1:
            return (keys.integer("num_target_layers") // 2,)
        return tuple(round(1 + step * (last - 1) / (layers - 1)) for step in range(layers))
    if not isinstance(listed, list) or not listed or not all(isinstance(tap, int) for tap in listed):
        raise ValueError(f"target_layer_ids must list layer numbers, got {listed!r}")
    return tuple(listed)


def layer_rules(keys: Keys, layers: int) -> tuple[LayerRule, ...]:
    kinds = keys.get("layer_types") or ["full_attention"] * layers
    if len(kinds) != layers:
        raise ValueError(f"layer_types lists {len(kinds)} layers, num_hidden_layers says {layers}")
    causal = keys.get("is_causal", keys.get("causal"))
    return tuple(layer_rule(kind, causal, keys) for kind in kinds)


def layer_rule(kind: Any, causal: bool | None, keys: Keys) -> LayerRule:
    if kind == "full_attention":
        return LayerRule(causal=bool(causal))
    if kind != "sliding_attention":
        raise ValueError(f"layer_types holds {kind!r}: only full_attention and sliding_attention are known")
    return LayerRule(causal=True if causal is None else bool(causal), window=keys.integer("sliding_window"))


def rope_parameters(keys: Keys) -> dict[str, Any]:
    current, scaling, theta = (keys.get(name) for name in ROPE_KEYS)
    found = dict(current or scaling or {})
    found.setdefault("rope_theta", 10000.0 if theta is None else theta)
    found["rope_type"] = found.get("rope_type", found.pop("type", "default"))
    return found
