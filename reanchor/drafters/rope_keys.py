"""A checkpoint's rope keys, old or new, as transformers' `rope_parameters`."""

from __future__ import annotations

from typing import Any

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from reanchor.drafters.keys import ConfigKeys

# What a Qwen3 body's rope reads. The rest (partial rotation, multimodal sections) is left over from the
# target's config: trainers build the drafter's rope without it, whatever the file says.
KNOWN = {
    "rope_type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
}
PARTIAL = "partial_rotary_factor"
NESTED = ("full_attention", "sliding_attention")


def rope_parameters(keys: ConfigKeys, gemma: bool) -> dict[str, Any]:
    current, scaling, theta = (keys.get(name) for name in ("rope_parameters", "rope_scaling", "rope_theta"))
    found = dict(current or scaling or {})
    if any(kind in found for kind in NESTED):  # a set for each kind of the target's layers
        order = NESTED if gemma else reversed(NESTED)
        found = dict(next(found[kind] for kind in order if found.get(kind)))
    found["rope_type"] = found.get("rope_type", found.get("type", "default"))
    if found["rope_type"] == "mrope":
        found["rope_type"] = "default"
    if found["rope_type"] not in ("default", *ROPE_INIT_FUNCTIONS):
        known = ", ".join(["default", *ROPE_INIT_FUNCTIONS])
        raise ValueError(f"rope_type is {found['rope_type']!r}, and transformers knows {known}")
    if found.get("rope_theta") is None:
        found["rope_theta"] = 10000.0 if theta is None else theta
    kept = KNOWN | {PARTIAL} if gemma else KNOWN
    return {name: value for name, value in found.items() if name in kept}
