"""The drafter a run starts from: a checkpoint's, or a new one whose layers are copies of the target's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reanchor.drafters.checkpoint import Checkpoint
from reanchor.drafters.drafter_config import DrafterConfig
from reanchor.drafters.load import locate
from reanchor.drafters.names import renamed
from reanchor.drafters.recognition import recognise
from reanchor.training.checkpoints import write_drafter
from reanchor.training.drafter_shape import DrafterShape

NEW_BLOCK = 8


def init_drafter(
    folder: Path, source: str | None, shape: DrafterShape, target: PreTrainedModel, carryover: bool
) -> None:
    """Write the starting drafter to `folder`."""
    if source is None:
        config, tensors = fresh(shape, target)
    else:
        checkpoint = Checkpoint(locate(source))
        found = recognise(checkpoint).config
        refuse_another_shape(shape, found, source)
        config, tensors = dict(checkpoint.config), renamed(checkpoint.tensors())
        if shape.markov_rank and found.markov is None:
            sizes = found.vocab_size, found.hidden_size, found.shifted
            config, tensors = with_markov(config, tensors, shape.markov_rank, *sizes)
    if carryover and "carryover_embedding" not in tensors:
        width = tensors["fc.weight"].shape[1]
        tensors["carryover_embedding"] = torch.zeros(width)
        if config.get("dflash_config") is None:
            config["carryover"] = True
        else:
            config["dflash_config"] = {**config["dflash_config"], "carryover": True}
    write_drafter(folder, config, tensors, torch.float32)


def refuse_another_shape(shape: DrafterShape, found: DrafterConfig, source: str) -> None:
    """What was asked for must be what the checkpoint is; a Markov head can be added, the rest is in its tensors."""
    markov = found.markov
    asked = {  # None: not asked for
        "block_size {}": (found.block_size, shape.block_size),
        "taps {}": (",".join(map(str, found.tap_layers)), shape.taps and shape.taps.replace(" ", "")),
        "mask_token {}": (found.mask_token_id, shape.mask_token),
        "{} layers": (found.layers, shape.layers and len(shape.layers.split(","))),
        "markov_rank {}": (markov and markov.rank, markov and (shape.markov_rank or None)),
    }
    for words, (has, wanted) in asked.items():
        if wanted is not None and has != wanted:
            raise ValueError(
                f"the drafter {source!r} has {words.format(has)}, not {wanted}: one that starts from a checkpoint "
                "keeps its shape; leave that option out, or leave out --init"
            )


def numbers(text: str, what: str, limit: int) -> list[int]:
    try:
        found = [int(each) for each in text.split(",")]
    except ValueError:
        raise ValueError(f"{what} must be layer numbers separated by commas, got {text!r}") from None
    if not all(0 <= each < limit for each in found):
        raise ValueError(f"{what} {text!r} lies outside the target's layers, 0 to {limit - 1}")
    return found


def taps_of(told: str | None, depth: int) -> list[int]:
    """The target layers that a new drafter reads."""
    return spread(5, 1, depth - 3) if told is None else numbers(told, "taps", depth)


def spread(count: int, first: int, last: int) -> list[int]:
    return [round(first + step * (last - first) / max(1, count - 1)) for step in range(count)]


def fresh(shape: DrafterShape, target: PreTrainedModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A drafter of the target's own geometry; norms over heads, which the target may lack, start at one."""
    text = target.config.get_text_config()
    depth, hidden = text.num_hidden_layers, text.hidden_size
    taps = taps_of(shape.taps, depth)
    copied = spread(3, depth // 4, depth * 3 // 4)
    if shape.layers is not None:
        copied = numbers(shape.layers, "layers", depth)
    state = target.get_decoder().state_dict()
    tensors = {
        "fc.weight": torch.cat([torch.eye(hidden)] * len(taps), 1) / len(taps),
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": state["norm.weight"].float(),
    }
    head_dim = getattr(text, "head_dim", None) or hidden // text.num_attention_heads
    for place, layer in enumerate(copied):
        tensors |= copied_layer(state, layer, place, head_dim)
    config = geometry(target, shape, taps, len(copied), head_dim)
    if not shape.markov_rank:
        return config, tensors
    return with_markov(config, tensors, shape.markov_rank, text.vocab_size, hidden, shifted=False)


def copied_layer(state: dict[str, Tensor], layer: int, place: int, head_dim: int) -> dict[str, Tensor]:
    names = ["input_layernorm", "post_attention_layernorm"]
    names += [f"self_attn.{each}_proj" for each in "qkvo"] + [
        f"mlp.{each}_proj" for each in ("gate", "up", "down")
    ]
    try:
        found = {name: state[f"layers.{layer}.{name}.weight"].float() for name in names}
    except KeyError as error:
        raise ValueError(
            f"the target's layers have no {error}: they cannot be copied; start from a drafter checkpoint (--init)"
        ) from None
    norms = {f"self_attn.{each}_norm": torch.ones(head_dim) for each in "qk"}
    for name in norms:
        norms[name] = state.get(f"layers.{layer}.{name}.weight", norms[name]).float()
    return {f"layers.{place}.{name}.weight": tensor for name, tensor in (found | norms).items()}


def geometry(
    target: PreTrainedModel, shape: DrafterShape, taps: list[int], layers: int, head_dim: int
) -> dict[str, Any]:
    text = target.config.get_text_config()
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": text.num_attention_heads,
        "num_key_value_heads": text.num_key_value_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": text.rms_norm_eps,
        "attention_bias": False,
        "vocab_size": text.vocab_size,
        "max_position_embeddings": text.max_position_embeddings,
        "rope_parameters": json.loads(json.dumps(text.rope_parameters)),
        "layer_types": ["full_attention"] * layers,
        "num_target_layers": text.num_hidden_layers,
        "block_size": shape.block_size or NEW_BLOCK,
        "dflash_config": {"mask_token_id": mask_token(target, shape), "target_layer_ids": taps},
    }


def mask_token(target: PreTrainedModel, shape: DrafterShape) -> int:
    vocabulary = target.config.get_text_config().vocab_size
    if shape.mask_token is None:
        raise ValueError("a new drafter needs --mask-token: the id of a token that no response holds")
    if not 0 <= shape.mask_token < vocabulary:
        raise ValueError(f"mask_token is {shape.mask_token}, the target's vocabulary is {vocabulary}")
    return shape.mask_token


def with_markov(
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    rank: int,
    vocabulary: int,
    hidden: int,
    shifted: bool,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """DSpark's heads on a DFlash body; the correction starts at nothing, the confidence at even odds."""
    generator = torch.Generator().manual_seed(0)
    added = {
        "markov_head.markov_w1.weight": torch.randn(vocabulary, rank, generator=generator) * rank**-0.5,
        "markov_head.markov_w2.weight": torch.zeros(vocabulary, rank),
        "confidence_head.proj.weight": torch.zeros(1, hidden + rank),
        "confidence_head.proj.bias": torch.zeros(1),
    }
    nested = {
        **(config.get("dflash_config") or {}),
        "projector_type": "dspark",
        "markov_rank": rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "sample_from_anchor": shifted,
    }
    return {**config, "architectures": ["DSparkDraftModel"], "dflash_config": nested}, {**tensors, **added}
