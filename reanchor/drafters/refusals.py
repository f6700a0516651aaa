"""Checkpoints that look like ours and are not, each refused with its reason, before anything is built."""

from __future__ import annotations

from collections.abc import Mapping

from reanchor.drafters.checkpoint import Checkpoint
from reanchor.drafters.keys import ConfigKeys

Shapes = Mapping[str, tuple[int, ...]]
FLOATS = {"F64", "F32", "F16", "BF16"}
PACKED = ("weight_packed", "weight_scale", "qweight", "qzeros", "weight_scale_inv", "input_scale")
NEEDED = ("fc.weight", "hidden_norm.weight", "norm.weight", "layers.0.self_attn.q_norm.weight")


def refuse_foreign(checkpoint: Checkpoint, shapes: Shapes, keys: ConfigKeys) -> None:
    where = repr(str(checkpoint.folder))
    for reason in (
        quantised(checkpoint),
        bundled(checkpoint),
        mask_embedding(checkpoint),
        laguna(shapes),
        sinks(shapes, keys),
        gated_queries(shapes, keys),
        interleaved(keys),
        fused(shapes),
        mixed(shapes),
    ):
        if reason:
            raise ValueError(f"{where} {reason}")
    absent = [name for name in NEEDED if name not in shapes]
    if absent:
        raise ValueError(
            f"{where} is not a DFlash-family drafter: it has no {', '.join(absent)}; "
            "is this the target's folder rather than the drafter's?"
        )


def quantised(checkpoint: Checkpoint) -> str | None:
    config = checkpoint.config
    declared = [key for key in ("quantization_config", "compression_config") if config.get(key)]
    kinds = {kind for name, kind in checkpoint.dtypes.items() if not name.endswith(("d2t", "t2d"))} - FLOATS
    packed = [name for name in checkpoint.shapes if name.endswith(PACKED)]
    if declared or kinds or packed:
        sign = declared[0] if declared else packed[0] if packed else f"{', '.join(sorted(kinds))} tensors"
        return f"is a quantised drafter ({sign}), which would draft wrongly: use the unquantised checkpoint"
    return None


def bundled(checkpoint: Checkpoint) -> str | None:
    found = [name for name in checkpoint.shapes if name.startswith(("mtp.", "model.mtp."))]
    if found and any(name.startswith("model.") and "embed_tokens" in name for name in checkpoint.shapes):
        return (
            f"is a target, with multi-token prediction of its own ({found[0]!r}), which is no DFlash-family drafter: "
            "name it as the target, with a drafter of the family for it"
        )
    return (
        found and f"holds a drafter bundled in its target ({found[0]!r}): not a DFlash-family drafter" or None
    )


def mask_embedding(checkpoint: Checkpoint) -> str | None:
    path = checkpoint.folder / "mask_embedding.pt"
    return (
        f"brings an embedding of its own for the mask token ({path.name}): not supported"
        if path.exists()
        else None
    )


def laguna(shapes: Shapes) -> str | None:
    signs = [name for name in shapes if name.startswith("aux_hidden_norms.") or ".g_proj." in name]
    return f"is a Laguna drafter ({signs[0]!r}: gated heads): not supported" if signs else None


def sinks(shapes: Shapes, keys: ConfigKeys) -> str | None:
    signs = [name for name in shapes if "sink" in name]
    if signs or keys.get("attention_sink_bias"):
        return f"uses attention sinks ({signs[0] if signs else 'attention_sink_bias'}): not supported"
    if keys.get("attention_value_scale", 1.0) != 1.0:
        return "scales its attention values (attention_value_scale): not supported"
    return None


def gated_queries(shapes: Shapes, keys: ConfigKeys) -> str | None:
    queries, norm = (
        shapes.get("layers.0.self_attn.q_proj.weight"),
        shapes.get("layers.0.self_attn.q_norm.weight"),
    )
    heads = keys.get("num_attention_heads")
    if queries and norm and heads and queries[0] == 2 * heads * norm[0]:
        return (
            "has gated queries (q_proj twice as tall as its heads, as in Qwen3.5's own layers): not supported"
        )
    return None


def interleaved(keys: ConfigKeys) -> str | None:
    signs = [name for name in ("rope_is_neox_style", "is_neox_style") if keys.get(name, True) is not True]
    return (
        f"rotates neighbouring values ({signs[0]} is {keys.get(signs[0])!r}), not halves as these drafters do: "
        "not supported; true, or left out, means halves"
        if signs
        else None
    )


def fused(shapes: Shapes) -> str | None:
    signs = [name for name in shapes if ".qkv_proj." in name or ".gate_up_proj." in name]
    return (
        f"holds fused projections ({signs[0]!r}): export it with q_proj, k_proj, v_proj apart"
        if signs
        else None
    )


def mixed(shapes: Shapes) -> str | None:
    heads = {
        "DFlash 2's selector": "candidate_selector.",
        "Domino's GRU": "prefix_gru.",
        "DSpark's Markov head": "markov_head.",
    }
    found = [title for title, prefix in heads.items() if any(name.startswith(prefix) for name in shapes)]
    return (
        f"mixes {' and '.join(found)}: no published drafter does, the files are from two"
        if found[1:]
        else None
    )
