"""Recognition of a checkpoint: from its config as written to the description of a block drafter; it builds nothing.

Fields and tensors decide, never a class name alone, and tensors before fields: exporters rename classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reanchor.config_schema import check_config
from reanchor.drafters.attention_rules import layer_rules
from reanchor.drafters.checkpoint import Checkpoint
from reanchor.drafters.drafter_config import (
    ConfidenceConfig,
    ConvolutionConfig,
    DominoConfig,
    DrafterConfig,
    Family,
    MarkovConfig,
    SelectorConfig,
)
from reanchor.drafters.keys import ConfigKeys
from reanchor.drafters.markov import KINDS
from reanchor.drafters.names import renamed, starting
from reanchor.drafters.refusals import Shapes, refuse_foreign
from reanchor.drafters.rope_keys import rope_parameters

SPECULATORS = ("speculators_model_type", "speculators_config", "transformer_layer_config")
DEFAULT_BLOCK = {"z-lab": 16, "SpecForge": 16, "DeepSpec": 7, "speculators": 8}


@dataclass(frozen=True)
class Recognition:
    config: DrafterConfig
    unused_keys: tuple[str, ...]
    unused_tensors: tuple[str, ...]


def recognise(checkpoint: Checkpoint) -> Recognition:
    shapes = renamed(checkpoint.shapes)
    check_config(checkpoint.config, f"the drafter {str(checkpoint.folder)!r}")
    speculators = any(key in checkpoint.config for key in SPECULATORS)
    keys = ConfigKeys(flattened(checkpoint.config) if speculators else checkpoint.config, "dflash_config")
    refuse_foreign(checkpoint, shapes, keys)
    family = family_of(shapes, keys)
    dialect = "speculators" if speculators else dialect_of(shapes, keys, family)
    config = build_config(shapes, keys, dialect, family)
    used = set(renamed({name: name for name in checkpoint.shapes}).values())
    return Recognition(config, tuple(keys.unused()), tuple(sorted(checkpoint.shapes.keys() - used)))


def flattened(config: dict[str, Any]) -> dict[str, Any]:
    """speculators nest the transformer's keys and keep what is at the top to themselves."""
    inner = config.get("transformer_layer_config") or {}
    outer = {key: value for key, value in config.items() if key != "transformer_layer_config"}
    return {**inner, **outer}


def family_of(shapes: Shapes, keys: ConfigKeys) -> Family:
    projector = keys.get("projector_type", keys.get("speculators_model_type", ""))
    if starting(shapes, "candidate_selector.") or projector == "dflash2":
        return "dflash2"
    if starting(shapes, "prefix_gru.") or projector in ("domino", "causal_v5"):
        return "domino"
    if starting(shapes, "markov_head.", "confidence_head.") or keys.get("markov_rank") is not None:
        return "dspark"
    named = says_dspark(keys) and "lm_head.weight" in shapes  # a name counts only beside what it brings
    return "dspark" if projector == "dspark" or named else "dflash"


def says_dspark(keys: ConfigKeys) -> bool:
    return any("DSpark" in str(name) for name in keys.get("architectures", []))


def dialect_of(shapes: Shapes, keys: ConfigKeys, family: Family) -> str:
    if family == "dspark" and not keys.nested:
        return "DeepSpec"
    return "SpecForge" if family in ("dspark", "domino") else "z-lab"


def build_config(shapes: Shapes, keys: ConfigKeys, dialect: str, family: Family) -> DrafterConfig:
    geometry = body_geometry(shapes, keys)
    block = block_size(keys, DEFAULT_BLOCK[dialect])
    shifted = is_shifted(keys, dialect, family, block)
    vocabulary = vocab_size(shapes, keys, dialect)
    markov = markov_head(shapes, keys)
    return DrafterConfig(
        dialect=dialect,
        family=family,
        **geometry,
        vocab_size=vocabulary,
        block_size=block,
        mask_token_id=mask_token(keys),
        tap_layers=taps(keys, dialect, geometry["rules"]),
        target_layers=keys.integer("num_target_layers", 0) or None,
        target_hidden_size=keys.integer("target_hidden_size", geometry["hidden_size"]),
        shifted=shifted,
        own_embedding="embed_tokens.weight" in shapes,
        own_head="lm_head.weight" in shapes,
        draft_vocab_size=shapes["d2t"][0] if "d2t" in shapes else None,
        embedding_scale=embedding_scale(shapes, keys, geometry, dialect),
        output_multiplier=float(keys.get("output_multiplier", keys.get("logit_scale", 1.0))),
        softcap=keys.get("final_logit_softcapping"),
        markov=markov,
        confidence=confidence_head(shapes, keys, markov, block if shifted else block - 1),
        domino=domino_head(shapes, keys, dialect),
        selector=selector(shapes, keys),
        convolution=convolution(shapes, keys),
        carryover=carries_over(shapes, keys),
        target=named_target(keys),
    )


def body_geometry(shapes: Shapes, keys: ConfigKeys) -> dict[str, Any]:
    """The body's sizes; what the config leaves out, its tensors tell."""
    gemma = "layers.0.pre_feedforward_layernorm.weight" in shapes
    shared = gemma and "layers.0.self_attn.v_proj.weight" not in shapes
    head_dim = keys.integer("global_head_dim" if gemma else "head_dim", norm_size(shapes, "q_norm"))
    attention = {name: rows_of(shapes, f"layers.0.self_attn.{name}_proj.weight") for name in "qk"}
    kv_key = "num_global_key_value_heads" if shared else "num_key_value_heads"
    numbers = {int(name.split(".")[1]) for name in shapes if name.startswith("layers.")}
    layers = keys.integer("num_hidden_layers", max(numbers) + 1)
    if layers > len(numbers):
        raise ValueError(
            f"num_hidden_layers is {layers}, and the drafter has tensors of {len(numbers)} layers: restore config.json"
        )
    return {
        "hidden_size": keys.integer("hidden_size", shapes["norm.weight"][0]),
        "intermediate_size": keys.integer(
            "intermediate_size", rows_of(shapes, "layers.0.mlp.gate_proj.weight")
        ),
        "heads": keys.integer("num_attention_heads", attention["q"] // head_dim),
        "kv_heads": keys.integer(kv_key, attention["k"] // head_dim),
        "head_dim": head_dim,
        "eps": float(keys.get("rms_norm_eps", 1e-6)),
        "bias": bool(keys.get("attention_bias", "layers.0.self_attn.q_proj.bias" in shapes)),
        "activation": activation(keys, gemma),
        "rules": layer_rules(keys, layers),
        "rope": rope_parameters(keys, gemma),
        "max_positions": keys.integer("max_position_embeddings", 32768),
        "gemma": gemma,
        "shared_kv": shared,
    }


def norm_size(shapes: Shapes, norm: str) -> int:
    return shapes[f"layers.0.self_attn.{norm}.weight"][0]


def rows_of(shapes: Shapes, name: str) -> int:
    """0 when it is missing, which is said when the tensors are put in place."""
    return shapes.get(name, (0,))[0]


def activation(keys: ConfigKeys, gemma: bool) -> str:
    name = keys.get("hidden_activation") if gemma else None
    name = name or keys.get("hidden_act") or ("gelu_pytorch_tanh" if gemma else "silu")
    if name not in ("silu", "gelu_pytorch_tanh"):
        raise ValueError(f"hidden_act is {name!r}: drafters of this family use silu or gelu_pytorch_tanh")
    return name


def block_size(keys: ConfigKeys, default: int) -> int:
    size = keys.integer("block_size", default)
    if size < 2:
        raise ValueError(f"block_size must be at least 2 (the anchor and one proposal), got {size}")
    return size


def mask_token(keys: ConfigKeys) -> int:
    if keys.get("mask_token_id") is None:
        raise ValueError(
            "the drafter's config has no mask_token_id, and any guess would draft badly: add the id it was "
            "trained with to config.json (under dflash_config)"
        )
    return keys.integer("mask_token_id")


def taps(keys: ConfigKeys, dialect: str, rules: tuple[Any, ...]) -> tuple[int, ...]:
    """Layers whose outputs are read. speculators count the embedding's output as 0, we the first layer's."""
    name = "aux_hidden_state_layer_ids" if dialect == "speculators" else "target_layer_ids"
    listed, layers = keys.get(name), len(rules)
    if listed is None and dialect != "speculators":  # the first vintage spaced them by rule
        last = keys.integer("num_target_layers") - 3
        if layers == 1:
            return (keys.integer("num_target_layers") // 2,)
        return tuple(round(1 + step * (last - 1) / (layers - 1)) for step in range(layers))
    if not isinstance(listed, list) or not listed or not all(isinstance(tap, int) for tap in listed):
        raise ValueError(f"{name} must list layer numbers, got {listed!r}")
    return tuple(tap - 1 for tap in listed) if dialect == "speculators" else tuple(listed)


def is_shifted(keys: ConfigKeys, dialect: str, family: Family, block: int) -> bool:
    """Does the anchor's slot predict the token after it? The most explicit key that is there decides."""
    proposed = speculative_tokens(keys)
    if proposed is not None and proposed > block:
        raise ValueError(f"speculative_tokens is {proposed}, more than block_size {block} can propose")
    anchor = keys.get("sample_from_anchor")
    bonus, label = keys.get("dspark_bonus_anchor"), keys.get("shift_label")
    if anchor is None:
        anchor = label if bonus is None else not bonus
    if anchor is not None:
        return bool(anchor)
    if dialect == "speculators":
        return proposed == block if proposed is not None else family in ("dspark", "domino")
    if family == "dflash" and says_dspark(keys):
        raise ValueError(
            f"the class is {keys.get('architectures')}, and nothing else in the checkpoint is of DSpark: add "
            "sample_from_anchor to config.json, true if the anchor's slot predicts the token after it"
        )
    return family == "dspark"


def speculative_tokens(keys: ConfigKeys) -> int | None:
    methods = (keys.get("speculators_config") or {}).get("proposal_methods") or [{}]
    return methods[0].get("speculative_tokens")


def named_target(keys: ConfigKeys) -> str | None:
    return ((keys.get("speculators_config") or {}).get("verifier") or {}).get("name_or_path")


def vocab_size(shapes: Shapes, keys: ConfigKeys, dialect: str) -> int:
    """The target's. speculators leave out what equals transformers' default for Qwen3."""
    if "embed_tokens.weight" in shapes:
        return keys.integer("vocab_size", shapes["embed_tokens.weight"][0])
    return keys.integer("vocab_size", 151936 if dialect == "speculators" else None)


def embedding_scale(shapes: Shapes, keys: ConfigKeys, geometry: dict[str, Any], dialect: str) -> float | None:
    """A scale in the config is of the raw embedding; Gemma's own embedding is always scaled by its width.

    speculators train on the raw weight of the target's embedding. For z-lab's drafters of Gemma targets the publisher
    contradicts itself where no scale is given: its torch code reads the raw weight, its MLX code and the servers that
    its figures come from what the target's module gives. The latter is taken.
    """
    scale = keys.get("input_embedding_scale")
    if scale is None and dialect == "speculators" and "embed_tokens.weight" not in shapes:
        return 1.0
    if scale is None and geometry["gemma"] and "embed_tokens.weight" in shapes:
        return geometry["hidden_size"] ** 0.5
    return None if scale is None else float(scale)


def markov_head(shapes: Shapes, keys: ConfigKeys) -> MarkovConfig | None:
    rank = keys.integer("markov_rank", shapes.get("markov_head.markov_w1.weight", (0, 0))[1])
    if rank == 0:
        return None
    parts = {"gated": "markov_head.gate_proj.weight", "rnn": "markov_head.joint_proj.weight"}
    kind = next((kind for kind, name in parts.items() if name in shapes), "vanilla")
    said = str(keys.get("markov_head_type", kind)).lower()
    if said not in KINDS or said != kind:
        raise ValueError(f"markov_head_type is {said!r}, but the tensors are those of a {kind} Markov head")
    return MarkovConfig(rank, kind)


def confidence_head(
    shapes: Shapes, keys: ConfigKeys, markov: MarkovConfig | None, proposals: int
) -> ConfidenceConfig | None:
    said = keys.get("enable_confidence_head")
    width = shapes.get("confidence_head.proj.weight", (1, 0))[1]
    if not width and not said:
        return None
    reads = bool(keys.get("confidence_head_with_markov", width > shapes["norm.weight"][0]))
    if reads and markov is None:
        raise ValueError("confidence_head_with_markov is set, but there is no Markov head to read")
    listed = keys.get("confidence_temperatures") or [1.0] * proposals
    if len(listed) != proposals or not all(float(each) > 0 for each in listed):
        raise ValueError(f"confidence_temperatures must be {proposals} positive numbers, got {listed!r}")
    return ConfidenceConfig(reads, tuple(float(each) for each in listed))


def domino_head(shapes: Shapes, keys: ConfigKeys, dialect: str) -> DominoConfig | None:
    if not starting(shapes, "prefix_gru.", "embed_proj."):
        return None
    width, state = keys.get("emb_dim", keys.get("logits_correction_emb_dim")), keys.get("gru_hidden_dim")
    return DominoConfig(
        width=rows_of(shapes, "embed_proj.0.weight") if width is None else width,
        state=rows_of(shapes, "prefix_gru.weight_ih_l0") // 3 if state is None else state,
        prefix=keys.integer("pure_draft_prefix_len", 1 if dialect == "speculators" else 0),
    )


def selector(shapes: Shapes, keys: ConfigKeys) -> SelectorConfig | None:
    if not starting(shapes, "candidate_selector."):
        return None
    return SelectorConfig(keys.integer("selector_rank"), keys.integer("selector_top_k"))


def carries_over(shapes: Shapes, keys: ConfigKeys) -> bool:
    there = "carryover_embedding" in shapes
    if bool(keys.get("carryover", there)) != there:
        raise ValueError(
            f"the config's carryover is {not there}, but the checkpoint has {'a' if there else 'no'} "
            "carryover_embedding: one of the two files is another checkpoint's"
        )
    return there


def convolution(shapes: Shapes, keys: ConfigKeys) -> ConvolutionConfig | None:
    if not starting(shapes, "layers.0.attention_conv.", "layers.0.mlp_conv."):
        return None
    return ConvolutionConfig(keys.integer("conv_kernel_size"), keys.integer("conv_group_size"))
