"""Attention rules that a checkpoint's config states, by the newest published reading."""

from __future__ import annotations

from typing import Any

from reanchor.drafters.drafter_config import LayerRule
from reanchor.drafters.keys import ConfigKeys

FULL, SLIDING = "full_attention", "sliding_attention"


def layer_rules(keys: ConfigKeys, layers: int) -> tuple[LayerRule, ...]:
    kinds = layer_kinds(keys, layers)
    causal = keys.get("is_causal", keys.get("causal"))
    return tuple(layer_rule(kind, causal, keys) for kind in kinds)


def layer_kinds(keys: ConfigKeys, layers: int) -> list[Any]:
    kinds = keys.get("layer_types")
    if kinds is None:  # before layer types were written out
        first = keys.get("max_window_layers", 0) if keys.get("use_sliding_window") else layers
        return [SLIDING if layer >= first else FULL for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ValueError(f"layer_types must list {layers} layers, as num_hidden_layers says, got {kinds!r}")
    return kinds


def layer_rule(kind: Any, causal: bool | None, keys: ConfigKeys) -> LayerRule:
    """An explicit causality holds for every layer; else a sliding layer is causal and a full one is not.

    speculators say it for sliding layers alone, and the other way round; a window for every layer (use_swa)
    is two-sided.
    """
    if kind not in (FULL, SLIDING):
        raise ValueError(f"layer_types holds {kind!r}: only {FULL} and {SLIDING} are known")
    if keys.get("use_swa"):
        return LayerRule(bool(causal), keys.integer("swa_window_size", keys.get("sliding_window")))
    if kind == FULL:
        return LayerRule(bool(causal))
    default = not keys.get("sliding_window_non_causal", keys.get("speculators_model_type") == "dflash2")
    return LayerRule(default if causal is None else bool(causal), keys.integer("sliding_window"))
