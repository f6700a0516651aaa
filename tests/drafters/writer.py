"""Tiny random drafter checkpoints, written as their exporters write them, with the plain facts of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

H, INNER, V, HEADS, KV, HD, TARGET_LAYERS = 32, 48, 96, 4, 2, 8, 6
MASK, REDUCED = 95, 40
FAVOURED = (5, 17, 40)  # tokens that a test may make likely; in the reduced vocabulary, too


@dataclass(frozen=True)
class Facts:
    """What the oracle is told, by the test and not by the code under test."""

    layers: int = 2
    block: int = 4
    taps: tuple[int, ...] = (0, 2, 4)
    rules: tuple[tuple[bool, int | None], ...] = ((False, None), (False, None))  # causal, window
    theta: float = 10000.0
    frequencies: tuple[float, ...] | None = None  # in place of theta's
    angle_scale: float = 1.0
    eps: float = 1e-6
    bias: bool = False
    shifted: bool = False
    multiplier: float = 1.0
    softcap: float | None = None
    embedding_scale: float = 1.0
    gemma: bool = False
    kv: int = KV
    hd: int = HD
    prefix: int = 0  # Domino
    temperatures: tuple[float, ...] | None = None

    @property
    def proposals(self) -> int:
        return self.block if self.shifted else self.block - 1


def same(name: str) -> str:
    return name


@dataclass(frozen=True)
class Written:
    config: dict[str, Any]
    tensors: dict[str, Tensor]  # under z-lab's names
    facts: Facts = field(default_factory=Facts)
    name: Callable[[str], str] = same  # as the exporter names a tensor
    extra: dict[str, Tensor] = field(default_factory=dict)  # saved beside, and to be passed over

    def save(self, folder: Path, shards: int = 1) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        saved = {self.name(name): tensor for name, tensor in self.tensors.items()} | self.extra
        names = sorted(saved)
        if shards == 1:
            save_file(saved, folder / "model.safetensors")
            return folder
        weight_map: dict[str, str] = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            save_file({name: saved[name] for name in names[shard::shards]}, folder / file)
            weight_map.update(dict.fromkeys(names[shard::shards], file))
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder


def tiny_target(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = {
        "hidden_size": H,
        "intermediate_size": INNER,
        "vocab_size": V,
        "num_hidden_layers": TARGET_LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
    }
    return LlamaForCausalLM(LlamaConfig(**(shape | changes))).double().eval()


class Random:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def weight(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64) * 0.3

    def norm(self, size: int) -> Tensor:
        return 1 + torch.randn(size, generator=self.generator, dtype=torch.float64) * 0.2


def body_tensors(facts: Facts, seed: int = 1) -> dict[str, Tensor]:
    make = Random(seed)
    tensors = {
        "fc.weight": make.weight(H, len(facts.taps) * H),
        "hidden_norm.weight": make.norm(H),
        "norm.weight": make.norm(H),
    }
    for index in range(facts.layers):
        tensors |= {f"layers.{index}.{name}": tensor for name, tensor in layer_tensors(facts, make).items()}
    return tensors


def layer_tensors(facts: Facts, make: Random) -> dict[str, Tensor]:
    queries, keys = HEADS * facts.hd, facts.kv * facts.hd
    tensors = {}
    for name, rows, columns in (("q", queries, H), ("k", keys, H), ("v", keys, H), ("o", H, queries)):
        if facts.gemma and name == "v":
            continue
        tensors[f"self_attn.{name}_proj.weight"] = make.weight(rows, columns)
        if facts.bias:
            tensors[f"self_attn.{name}_proj.bias"] = make.weight(rows)
    tensors |= {
        "self_attn.q_norm.weight": make.norm(facts.hd),
        "self_attn.k_norm.weight": make.norm(facts.hd),
        "input_layernorm.weight": make.norm(H),
        "post_attention_layernorm.weight": make.norm(H),
        "mlp.gate_proj.weight": make.weight(INNER, H),
        "mlp.up_proj.weight": make.weight(INNER, H),
        "mlp.down_proj.weight": make.weight(H, INNER),
    }
    if facts.gemma:
        tensors |= {
            "pre_feedforward_layernorm.weight": make.norm(H),
            "post_feedforward_layernorm.weight": make.norm(H),
            "layer_scalar": make.norm(1),
        }
    return tensors


def qwen3_keys(facts: Facts) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "hidden_size": H,
        "intermediate_size": INNER,
        "num_hidden_layers": facts.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": facts.kv,
        "head_dim": facts.hd,
        "hidden_act": "silu",
        "rms_norm_eps": facts.eps,
        "attention_bias": facts.bias,
        "vocab_size": V,
        "max_position_embeddings": 512,
        "rope_theta": facts.theta,
    }


def dflash(facts: Facts | None = None, **config: Any) -> Written:
    """z-lab's first vintage, block_size at the top; later keys come by `config`."""
    facts = facts or Facts()
    written = qwen3_keys(facts) | {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "num_target_layers": TARGET_LAYERS,
        "block_size": facts.block,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(facts.taps)},
    }
    return Written(written | config, body_tensors(facts), facts)


def dflash_nested(facts: Facts | None = None, **config: Any) -> Written:
    """The re-uploads: block size and scales nested, rope_parameters."""
    written = dflash(facts)
    facts = written.facts
    keys = {key: value for key, value in written.config.items() if key not in ("block_size", "rope_theta")}
    keys["rope_parameters"] = {"rope_theta": facts.theta, "rope_type": "default"}
    keys["dflash_config"] = keys["dflash_config"] | {"block_size": facts.block}
    return replace(written, config=keys | config)


def dflash2(facts: Facts | None = None, top_k: int = 5) -> Written:
    facts = facts or Facts(rules=((False, 6), (False, None)), multiplier=0.6, softcap=4.0)
    make, rank, kernel, group = Random(11), 6, 3, 8
    written = dflash_nested(
        facts,
        architectures=["DFlash2DraftModel"],
        is_causal=False,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=6,
        use_sliding_window=True,
    )
    written.config["dflash_config"] |= {
        "conv_kernel_size": kernel,
        "conv_group_size": group,
        "selector_rank": rank,
        "selector_top_k": top_k,
        "output_multiplier": facts.multiplier,
        "final_logit_softcapping": facts.softcap,
        "input_embedding_scale": facts.embedding_scale,
    }
    for index in range(facts.layers):
        for part in ("attention_conv", "mlp_conv"):
            at = f"layers.{index}.{part}."
            written.tensors[f"{at}base_kernel"] = make.weight(2, kernel, H)
            written.tensors[f"{at}kernel_projection.weight"] = make.weight(2 * kernel * (H // group), H)
    written.tensors["candidate_selector.hidden_projection.weight"] = make.weight(rank, H)
    for name in ("predecessor", "successor"):
        written.tensors[f"candidate_selector.{name}_codebook"] = make.weight(V, rank) * 3
    return written


def own_ends(scored: int = V) -> dict[str, Tensor]:
    make = Random(12)
    return {"embed_tokens.weight": make.weight(V, H), "lm_head.weight": make.weight(scored, H)}


def markov_tensors(kind: str, rank: int = 6, scored: int = V) -> dict[str, Tensor]:
    make = Random(13)
    tensors = {
        "markov_head.markov_w1.weight": make.weight(V, rank) * 3,
        "markov_head.markov_w2.weight": make.weight(scored, rank) * 3,
    }
    if kind == "gated":
        tensors["markov_head.gate_proj.weight"] = make.weight(rank, H + rank)
        tensors["markov_head.gate_proj.bias"] = make.weight(rank)
    if kind == "rnn":
        tensors["markov_head.joint_proj.weight"] = make.weight(3 * rank, 2 * rank + H)
        tensors["markov_head.joint_proj.bias"] = make.weight(3 * rank)
    return tensors


def confidence_tensors(markov: bool, rank: int = 6) -> dict[str, Tensor]:
    make = Random(14)
    width = H + (rank if markov else 0)
    return {"confidence_head.proj.weight": make.weight(1, width), "confidence_head.proj.bias": make.weight(1)}


def deepspec(kind: str | None, facts: Facts | None = None, confident: bool = True, **config: Any) -> Written:
    """DeepSpec's flat config and its own ends; `kind` None is its DFlash: rank 0, no confidence head."""
    facts = facts or Facts(shifted=True)
    written = qwen3_keys(facts) | {
        "architectures": ["Qwen3DSparkModel"],
        "num_target_layers": TARGET_LAYERS,
        "block_size": facts.block,
        "mask_token_id": MASK,
        "target_layer_ids": list(facts.taps),
        "num_anchors": 512,
        "layer_types": ["full_attention"] * facts.layers,
        "tie_word_embeddings": False,
        "enable_confidence_head": confident and kind is not None,
        "markov_rank": 6 if kind else 0,
    }
    tensors = body_tensors(facts) | own_ends()
    if kind:
        written |= {"markov_head_type": kind}
        tensors |= markov_tensors(kind)
        if confident:
            written["confidence_head_with_markov"] = True
            tensors |= confidence_tensors(True)
    return Written(written | config, tensors, facts)


def deepspec_gemma() -> Written:
    """Keys of a Gemma 4 text config, most of them of no use to the drafter."""
    rotated, size = 4, 16  # a quarter of the pairs turn, at frequencies of the whole head
    frequencies = tuple(100.0 ** (-2 * pair / size) for pair in range(rotated // 2)) + (0.0,) * (
        size // 2 - 2
    )
    facts = Facts(
        shifted=True,
        gemma=True,
        kv=1,
        hd=size,
        frequencies=frequencies,
        softcap=2.0,
        embedding_scale=H**0.5,
        taps=(-1, 2, 4),
    )
    written = deepspec("vanilla", facts)
    config = written.config | {
        "architectures": ["Gemma4DSparkModel"],
        "model_type": "gemma4_text",
        "head_dim": 8,
        "global_head_dim": size,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": 2.0,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.25,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
        },
    }
    del config["rope_theta"], config["hidden_act"]
    return replace(written, config=config)


def specforge_dspark() -> Written:
    facts = Facts(shifted=True)
    written = dflash(facts, architectures=["DSparkDraftModel"])
    written.config["dflash_config"] |= {
        "projector_type": "dspark",
        "attention_mode": "gqa",
        "markov_rank": 6,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": False,
        "confidence_head_alpha": 1.0,
    }
    head = markov_tensors("vanilla") | confidence_tensors(False)
    return replace(
        written,
        tensors=written.tensors | head,
        name=lambda name: f"logit_head.{name}" if name in head else name,
    )


def gru_tensors(width: int = 10, state: int = 12) -> dict[str, Tensor]:
    make = Random(15)
    return {
        "prefix_gru.weight_ih_l0": make.weight(3 * state, H),
        "prefix_gru.weight_hh_l0": make.weight(3 * state, state),
        "embed_proj.0.weight": make.weight(width, H + state),
        "embed_proj.2.weight": make.weight(V, width) * 3,
    }


def domino(shifted: bool, prefix: int, projector: str = "domino") -> Written:
    facts = Facts(shifted=shifted, prefix=prefix)
    written = dflash(facts, architectures=["DFlashDraftModel"])
    written.config["dflash_config"] |= {
        "projector_type": projector,
        "emb_dim": 10,
        "gru_hidden_dim": 12,
        "pure_draft_prefix_len": prefix,
        "shift_label": shifted,
    }
    head = gru_tensors()
    return replace(
        written,
        tensors=written.tensors | head,
        name=lambda name: f"logit_head.{name}" if name in head else name,
    )


def speculators(kind: str, facts: Facts, tensors: dict[str, Tensor], **config: Any) -> Written:
    """The transformer's keys nested, layers counted from the embedding, the vocabulary reduced or not."""
    inner = qwen3_keys(facts) | {
        "layer_types": ["full_attention" if not window else "sliding_attention" for _, window in facts.rules],
        "sliding_window": next((window for _, window in facts.rules if window), None),
        "use_sliding_window": True,
    }
    written = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": kind,
        "speculators_version": "0.5.0",
        "transformer_layer_config": inner,
        "draft_vocab_size": V,
        "block_size": facts.block,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in facts.taps],
        "mask_token_id": MASK,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": facts.proposals}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "example/target", "architectures": ["LlamaForCausalLM"]},
        },
    }
    return Written(written | config, body_tensors(facts) | tensors, facts)


def reduced_vocabulary() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """`d2t` as offsets, to be read; `t2d`, to be passed over."""
    drawn = torch.randperm(V, generator=torch.Generator().manual_seed(16)).tolist()
    kept = torch.tensor(sorted([*FAVOURED, *(token for token in drawn if token not in FAVOURED)][:REDUCED]))
    mask = torch.zeros(V, dtype=torch.bool)
    mask[kept] = True
    return {"d2t": kept - torch.arange(REDUCED)}, {"t2d": mask}


def speculators_dflash() -> Written:
    facts = Facts(rules=((True, 6), (False, None)))
    mapping, unread = reduced_vocabulary()
    written = speculators(
        "dflash",
        facts,
        own_ends(REDUCED) | mapping,
        draft_vocab_size=REDUCED,
        sliding_window_non_causal=False,
    )
    return replace(written, extra=unread)


def speculators_dspark() -> Written:
    mapping, unread = reduced_vocabulary()
    tensors = own_ends(REDUCED) | mapping | markov_tensors("gated", scored=REDUCED) | confidence_tensors(True)
    written = speculators(
        "dspark",
        Facts(shifted=True),
        tensors,
        draft_vocab_size=REDUCED,
        sample_from_anchor=True,
        markov_rank=6,
        markov_head_type="gated",
        enable_confidence_head=True,
        confidence_head_with_markov=True,
    )
    return replace(written, extra=unread)


def speculators_domino() -> Written:
    """Newer files leave out embedding and head when they are the target's."""
    head = gru_tensors()
    written = speculators(
        "domino",
        Facts(shifted=True, prefix=1),
        head,
        sample_from_anchor=True,
        gru_hidden_dim=12,
        logits_correction_emb_dim=10,
    )
    return replace(written, name=lambda name: f"logits_correction.{name}" if name in head else name)


def yarn() -> tuple[dict[str, Any], Facts]:
    """gpt-oss: rope stretched 32 times from 64 positions, biases everywhere."""
    size, theta, factor, original, fast, slow = HD, 150.0, 32.0, 64, 32.0, 1.0

    def pair_turning(turns: float) -> float:
        return (
            size
            * torch.log(torch.tensor(original / (turns * 2 * torch.pi))).item()
            / (2 * torch.log(torch.tensor(theta)).item())
        )

    low, high = max(pair_turning(fast), 0), min(pair_turning(slow), size - 1)
    frequencies = []
    for pair in range(size // 2):
        plain = theta ** (-2 * pair / size)
        ramp = min(max((pair - low) / (high - low), 0), 1)
        frequencies.append(plain / factor * ramp + plain * (1 - ramp))
    scale = 0.1 * torch.log(torch.tensor(factor)).item() + 1
    keys = {
        "model_type": "gpt_oss",
        "rope_theta": theta,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "beta_fast": fast,
            "beta_slow": slow,
            "truncate": False,
        },
        "max_position_embeddings": 2048,
    }
    return keys, Facts(frequencies=tuple(frequencies), angle_scale=scale, bias=True, eps=1e-5, theta=theta)


def gpt_oss() -> Written:
    keys, facts = yarn()
    return dflash(facts, **keys)


def old_names(name: str) -> str:
    """Another exporter's names for the same tensors."""
    for ours, theirs in {
        "fc.": "encoder.fc.",
        "hidden_norm.": "encoder.output_norm_enc.",
        "layers.0.": "midlayer.",
    }.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


DIALECTS: dict[str, Written] = {
    "dflash": dflash(),
    "dflash nested": dflash_nested(Facts(theta=500.0)),
    "dflash swa": dflash_nested(
        Facts(rules=((True, 6), (False, None))),
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=6,
        use_sliding_window=True,
    ),
    "dflash prefixed": replace(dflash(), name=lambda name: f"model.{name}"),
    "dflash renamed": replace(dflash(), name=old_names),
    "draft-opd": dflash(),  # the exporter copies DFlash's config and demands its very tensors
    "gpt-oss": gpt_oss(),
    "dflash2": dflash2(),
    "deepspec dflash": deepspec(None),
    "deepspec vanilla": deepspec("vanilla"),
    "deepspec gated": deepspec(
        "gated",
        Facts(shifted=True, temperatures=(0.5, 1.0, 2.0, 3.0)),
        confidence_temperatures=[0.5, 1.0, 2.0, 3.0],
    ),
    "deepspec rnn": deepspec("rnn", confident=False),
    "deepspec gemma": deepspec_gemma(),
    "specforge dspark": specforge_dspark(),
    "domino shifted": domino(True, 1),
    "domino unshifted": domino(False, 0, "causal_v5"),
    "speculators dflash": speculators_dflash(),
    "speculators dspark": speculators_dspark(),
    "speculators domino": speculators_domino(),
}
