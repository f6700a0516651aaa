"""Published configs, built on the meta device: every tensor in its place, and the right number of parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reanchor.drafters.checkpoint import Checkpoint
from reanchor.drafters.load import build, checkpoint_name
from reanchor.drafters.names import canonical
from reanchor.drafters.recognition import recognise

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Size:
    hidden: int
    inner: int
    layers: int
    heads: int
    kv: int
    hd: int
    block: int
    mask: int
    taps: tuple[int, ...]
    target_layers: int
    vocab: int
    parameters: int  # counted by hand from the tensor list, or by the publisher where said
    nested: bool = False
    bias: bool = False
    keys: dict[str, Any] = field(default_factory=dict)


QWEN3, QWEN35 = (1, 9, 17, 25, 33), (1, 8, 15, 22, 29)
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}


def swa(window: int, sliding: int) -> dict[str, Any]:
    """So many sliding layers, then a full one."""
    return {
        "layer_types": ["sliding_attention"] * sliding + ["full_attention"],
        "sliding_window": window,
        "use_sliding_window": True,
    }


SIZES = {
    "z-lab/Qwen3-4B-DFlash-b16": Size(
        2560, 9728, 5, 32, 8, 128, 16, 151669, QWEN3, 36, 151936, 537_427_200
    ),
    "z-lab/Qwen3-8B-DFlash-b16": Size(
        4096, 12288, 5, 32, 8, 128, 16, 151669, QWEN3, 36, 151936, 1_048_626_432
    ),
    "z-lab/gpt-oss-20b-DFlash": Size(
        2880, 7680, 8, 64, 8, 64, 8, 200000, (1, 6, 11, 16, 21), 24, 201088, 784_767_104,
        bias=True, keys={"rope_theta": 150000, "rope_scaling": YARN, "model_type": "gpt_oss"},
    ),
    "z-lab/Qwen3.5-4B-DFlash, first": Size(
        2560, 9728, 5, 32, 8, 128, 16, 248070, QWEN35, 32, 248320, 537_427_200
    ),
    "z-lab/Qwen3.5-4B-DFlash, second": Size(  # the publisher's own count
        2560, 9216, 6, 32, 8, 128, 16, 248077, (1, 5, 9, 13, 17, 21, 25, 29), 32, 248320, 634_425_856,
        nested=True, keys=swa(4096, 5),
    ),
    "z-lab/Qwen3.5-27B-DFlash": Size(
        5120, 17408, 5, 32, 8, 128, 16, 248070, (1, 16, 31, 46, 61), 64, 248320, 1_730_213_120
    ),
    "z-lab/Qwen3.5-35B-A3B-DFlash, first": Size(
        2048, 6144, 8, 32, 4, 128, 16, 248070, (1, 10, 19, 28, 37), 40, 248320, 473_995_264
    ),
    "z-lab/Qwen3.6-27B-DFlash": Size(
        5120, 17408, 5, 32, 8, 128, 16, 248070, (1, 16, 31, 46, 61), 64, 248320, 1_730_213_120,
        keys=swa(2048, 4),
    ),
    "z-lab/gemma-4-31B-it-DFlash": Size(
        5376, 10752, 5, 64, 8, 128, 16, 4, (1, 12, 23, 35, 46, 57), 60, 262144, 1_535_967_488,
        keys=swa(2048, 4) | {"final_logit_softcapping": 30.0},
    ),
    "SpecForge, Qwen2.5-0.5B": Size(
        896, 4864, 5, 14, 2, 64, 16, 151669, (1, 6, 11, 16, 21), 24, 151936, 78_572_672
    ),
    "SpecForge, LFM2.5-1.2B": Size(
        2048, 6144, 8, 32, 8, 64, 16, 16, (1, 4, 7, 10, 13), 16, 65536, 406_885_376,
        keys={"rms_norm_eps": 1e-5},
    ),
}  # fmt: skip


def shapes_of(size: Size) -> Shapes:
    queries, keys, hidden = size.heads * size.hd, size.kv * size.hd, size.hidden
    shapes: Shapes = {
        "fc.weight": (hidden, len(size.taps) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(size.layers):
        at = f"layers.{layer}."
        for name, rows, columns in (
            ("q", queries, hidden),
            ("k", keys, hidden),
            ("v", keys, hidden),
            ("o", hidden, queries),
        ):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, columns)
            if size.bias:
                shapes[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        shapes |= {
            f"{at}self_attn.q_norm.weight": (size.hd,),
            f"{at}self_attn.k_norm.weight": (size.hd,),
            f"{at}input_layernorm.weight": (hidden,),
            f"{at}post_attention_layernorm.weight": (hidden,),
            f"{at}mlp.gate_proj.weight": (size.inner, hidden),
            f"{at}mlp.up_proj.weight": (size.inner, hidden),
            f"{at}mlp.down_proj.weight": (hidden, size.inner),
        }
    return shapes


def config_of(size: Size) -> dict[str, Any]:
    dflash = {"mask_token_id": size.mask, "target_layer_ids": list(size.taps)}
    top = {} if size.nested else {"block_size": size.block}
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv,
        "head_dim": size.hd,
        "attention_bias": size.bias,
        "vocab_size": size.vocab,
        "num_target_layers": size.target_layers,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "dflash_config": dflash | ({"block_size": size.block} if size.nested else {}),
        **top,
        **size.keys,
    }


def header(config: dict[str, Any], shapes: Shapes) -> Checkpoint:
    """A checkpoint of which nothing but its header is there."""
    checkpoint = object.__new__(Checkpoint)
    checkpoint.folder, checkpoint.config, checkpoint.shapes = Path("published"), config, shapes
    checkpoint.dtypes = dict.fromkeys(shapes, "BF16")
    return checkpoint


def built_shapes(checkpoint: Checkpoint) -> Shapes:
    drafter = build(recognise(checkpoint).config)
    assert all(tensor.is_meta for tensor in drafter.state_dict().values())
    return {checkpoint_name(name): tuple(tensor.shape) for name, tensor in drafter.state_dict().items()}


def count(shapes: Shapes) -> int:
    total = 0
    for shape in shapes.values():
        product = 1
        for side in shape:
            product *= side
        total += product
    return total


@pytest.mark.parametrize("name", SIZES)
def test_published_sizes(name: str) -> None:
    size = SIZES[name]
    checkpoint = header(config_of(size), shapes_of(size))
    config = recognise(checkpoint).config
    assert (config.proposals, config.tap_layers, config.mask_token_id) == (
        size.block - 1,
        size.taps,
        size.mask,
    )
    assert len(checkpoint.shapes) == 3 + (15 if size.bias else 11) * size.layers
    assert built_shapes(checkpoint) == checkpoint.shapes
    assert count(checkpoint.shapes) == size.parameters


def test_muse_glimmer_dflash2() -> None:
    """All sliding and not causal, with convolutions and a selector: 5,544,319,488 bytes of bf16 as published."""
    size = Size(
        6656, 19968, 5, 32, 8, 128, 16, 201818, (1, 13, 25, 37, 49), 52, 202048, 2_772_159_744, nested=True
    )
    config = config_of(size) | {
        "is_causal": False,
        "layer_types": ["sliding_attention"] * 5,
        "sliding_window": 2048,
        "use_sliding_window": True,
        "rms_norm_eps": 1e-5,
    }
    config["dflash_config"] |= {
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "final_logit_softcapping": 20.0,
        "output_multiplier": 0.19611613513818404,
        "selector_rank": 256,
        "selector_top_k": 16,
    }
    shapes = shapes_of(size)
    for layer in range(5):
        for part in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{layer}.{part}.base_kernel"] = (2, 2, 6656)
            shapes[f"layers.{layer}.{part}.kernel_projection.weight"] = (1664, 6656)
    shapes["candidate_selector.hidden_projection.weight"] = (256, 6656)
    shapes["candidate_selector.predecessor_codebook"] = (202048, 256)
    shapes["candidate_selector.successor_codebook"] = (202048, 256)
    checkpoint = header(config, shapes)
    described = recognise(checkpoint).config
    assert described.family == "dflash2" and described.proposals == 15
    assert {(rule.causal, rule.window) for rule in described.rules} == {(False, 2048)}
    assert built_shapes(checkpoint) == {canonical(name): shape for name, shape in shapes.items()}
    assert count(shapes) == size.parameters


def deepspec(size: Size, kind: str, rank: int) -> Checkpoint:
    flat = config_of(size) | {
        "architectures": ["Qwen3DSparkModel"],
        "mask_token_id": size.mask,
        "target_layer_ids": list(size.taps),
        "markov_rank": rank,
        "markov_head_type": kind,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    del flat["dflash_config"]
    ends = {"embed_tokens.weight": (size.vocab, size.hidden), "lm_head.weight": (size.vocab, size.hidden)}
    heads = {
        "markov_head.markov_w1.weight": (size.vocab, rank),
        "markov_head.markov_w2.weight": (size.vocab, rank),
        "confidence_head.proj.weight": (1, size.hidden + rank),
        "confidence_head.proj.bias": (1,),
    }
    return header(flat, shapes_of(size) | ends | heads)


def test_deepspec_qwen3_8b() -> None:
    size = Size(4096, 12288, 5, 32, 8, 128, 7, 151669, QWEN3, 36, 151936, 0)
    checkpoint = deepspec(size, "vanilla", 256)
    config = recognise(checkpoint).config
    assert (config.dialect, config.family, config.proposals) == ("DeepSpec", "dspark", 7)
    assert built_shapes(checkpoint) == checkpoint.shapes


def test_redhat_qwen3_8b() -> None:
    """An early file: its class says DFlashDraftModel, its layers count from the embedding."""
    size = Size(4096, 12288, 5, 32, 8, 128, 8, 151669, QWEN3, 36, 151936, 0)
    inner = {
        key: value for key, value in config_of(size).items() if key not in ("dflash_config", "block_size")
    }
    del inner["num_target_layers"]
    config = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": inner,
        "draft_vocab_size": 32000,
        "block_size": 8,
        "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34],
        "mask_token_id": 151669,
    }
    shapes = shapes_of(size) | {
        "embed_tokens.weight": (151936, 4096),
        "lm_head.weight": (32000, 4096),
        "d2t": (32000,),
        "t2d": (151936,),
    }
    checkpoint = header(config, shapes)
    checkpoint.dtypes |= {"d2t": "I64", "t2d": "BOOL"}
    found = recognise(checkpoint)
    assert (found.config.dialect, found.config.proposals, found.config.tap_layers) == (
        "speculators",
        7,
        QWEN3,
    )
    assert found.unused_tensors == ("t2d",)
    del shapes["t2d"]
    assert built_shapes(checkpoint) == shapes
