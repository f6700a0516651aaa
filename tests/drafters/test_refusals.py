"""Damaged, foreign and misfitting checkpoints: a clear error each, never a wrong draft."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from reanchor.drafters.load import load_drafter

from .writer import DIALECTS, MASK, REDUCED, Written, confidence_tensors, dflash, gru_tensors, tiny_target

TARGET = tiny_target()
Damage = Callable[[Written], object]


def config(**changes: object) -> Damage:
    return lambda written: written.config.update(changes)


def nested(**changes: object) -> Damage:
    return lambda written: written.config["dflash_config"].update(changes)


def drop(name: str) -> Damage:
    return lambda written: written.tensors.pop(name)


def put(name: str, tensor: torch.Tensor) -> Damage:
    return lambda written: written.tensors.update({name: tensor})


def forget(key: str, *path: str) -> Damage:
    def damage(written: Written) -> None:
        keys = written.config
        for step in path:
            keys = keys[step]
        del keys[key]

    return damage


ZEROS = torch.zeros
CASES: dict[str, tuple[str, Damage, str]] = {
    "no mask id": ("dflash", forget("mask_token_id", "dflash_config"), "mask_token_id"),
    "no mask id, nested": ("dflash2", forget("mask_token_id", "dflash_config"), "mask_token_id"),
    "no mask id, flat": ("deepspec vanilla", forget("mask_token_id"), "mask_token_id"),
    "mask id beyond the embedding": ("dflash", nested(mask_token_id=96), r"mask_token_id is 96.*96 rows"),
    "mask id a word": ("dflash", nested(mask_token_id="<mask>"), "'mask_token_id'.*'<mask>'"),
    "tap beyond the target": ("dflash", nested(target_layer_ids=[0, 2, 6]), r"\[6\], the target has 6"),
    "taps no list": ("dflash", nested(target_layer_ids=3), "target_layer_ids must list"),
    "no taps": ("speculators dflash", forget("aux_hidden_state_layer_ids"), "aux_hidden_state_layer_ids"),
    "another target's depth": ("dflash", config(num_target_layers=36), "36 layers"),
    "another width": ("dflash", config(hidden_size=64), "width is 64"),
    "another vocabulary": ("dflash", config(vocab_size=100), "100 tokens"),
    "vocabulary of its own embedding": (
        "deepspec vanilla",
        put("embed_tokens.weight", ZEROS(97, 32)),
        r"embed_tokens.weight has shape \[97, 32\], not \[96, 32\]",
    ),
    "head too short": (
        "deepspec rnn",
        put("lm_head.weight", ZEROS(40, 32)),
        r"lm_head.weight has shape \[40",
    ),
    "wrong shape": (
        "dflash",
        put("fc.weight", ZEROS(32, 32)),
        r"fc.weight has shape \[32, 32\], not \[32, 96\]",
    ),
    "missing tensor": (
        "dflash",
        drop("layers.1.mlp.up_proj.weight"),
        "missing: layers.1.mlp.up_proj.weight",
    ),
    "missing head": ("speculators dflash", drop("lm_head.weight"), "d2t.*no head"),
    "missing half of a head": (
        "deepspec gated",
        drop("markov_head.markov_w2.weight"),
        "missing: markov_head.markov_w2.weight",
    ),
    "missing GRU": ("domino shifted", drop("prefix_gru.weight_hh_l0"), "missing: prefix_gru.weight_hh_l0"),
    "Markov head only in the config": ("deepspec dflash", config(markov_rank=6), "missing: markov_head"),
    "unexpected tensor": ("dflash", put("layers.0.extra", ZEROS(3)), "unexpected: layers.0.extra"),
    "unexpected layer": ("dflash", config(num_hidden_layers=1), "unexpected: layers.1"),
    "a tensor twice": ("dflash", put("model.norm.weight", torch.ones(32)), "'norm.weight' twice"),
    "another head's type": ("deepspec gated", config(markov_head_type="rnn"), "'rnn'.*gated"),
    "unknown head type": ("deepspec vanilla", config(markov_head_type="deep"), "'deep'"),
    "confidence without Markov": (
        "deepspec dflash",
        lambda written: (
            written.tensors.update(confidence_tensors(True)),
            written.config.update(enable_confidence_head=True, confidence_head_with_markov=True),
        ),
        "no Markov head",
    ),
    "too few temperatures": ("deepspec vanilla", config(confidence_temperatures=[1.0]), "4 positive numbers"),
    "DSpark in name only": ("dflash", config(architectures=["Qwen3DSparkModel"]), "sample_from_anchor"),
    "two dialects mixed": (
        "dflash2",
        lambda written: written.tensors.update(gru_tensors()),
        "mixes DFlash 2's selector and Domino's GRU",
    ),
    "two dialects mixed again": (
        "deepspec vanilla",
        lambda written: written.tensors.update(gru_tensors()),
        "mixes Domino's GRU and DSpark's Markov head",
    ),
    "d2t beyond the vocabulary": (
        "speculators dflash",
        put("d2t", torch.arange(REDUCED) * 3),
        "d2t maps draft tokens to 0 .. 156",
    ),
    "d2t as ids": (
        "speculators dspark",
        put("d2t", torch.arange(REDUCED) + 50),
        r"d2t maps.*128.*offset|less draft",
    ),
    "more proposals than slots": (
        "speculators dflash",
        lambda written: written.config["speculators_config"]["proposal_methods"][0].update(
            speculative_tokens=5
        ),
        "speculative_tokens is 5",
    ),
    "NaN": ("dflash", put("norm.weight", torch.full((32,), torch.nan)), "'norm.weight'.*NaN"),
    "infinite": ("dflash2", put("fc.weight", torch.full((32, 96), torch.inf)), "'fc.weight'.*NaN or inf"),
    "quantised by config": ("dflash", config(quantization_config={"bits": 4}), "quantised"),
    "quantised by tensor": ("dflash", put("fc.weight", ZEROS(32, 96, dtype=torch.int8)), "quantised"),
    "quantised by name": ("dflash", put("layers.0.mlp.up_proj.weight_scale", ZEROS(48)), "quantised"),
    "not a drafter": ("dflash", drop("fc.weight"), "not a DFlash-family drafter"),
    "Laguna": ("dflash", put("aux_hidden_norms.0.weight", ZEROS(32)), "Laguna"),
    "Laguna's gate": ("dflash", put("layers.0.self_attn.g_proj.weight", ZEROS(4, 32)), "Laguna"),
    "bundled": ("dflash", put("mtp.layers.0.norm.weight", ZEROS(32)), "bundled in its target"),
    "gated queries": ("dflash", put("layers.0.self_attn.q_proj.weight", ZEROS(64, 32)), "gated queries"),
    "sinks": ("dflash", put("layers.0.self_attn.attention_sink_bias", ZEROS(4)), "attention sinks"),
    "scaled values": ("dflash", nested(attention_value_scale=0.612), "attention_value_scale"),
    "fused projections": ("dflash", put("layers.0.self_attn.qkv_proj.weight", ZEROS(64, 32)), "fused"),
    "block of one": ("dflash", config(block_size=1), "block_size"),
    "unknown attention": ("dflash", config(layer_types=["full_attention", "chunked"]), "'chunked'"),
    "layer types too short": ("dflash", config(layer_types=["full_attention"]), "layer_types"),
    "window without a size": (
        "dflash",
        config(layer_types=["full_attention", "sliding_attention"]),
        "no 'sliding_window'",
    ),
    "unknown activation": ("dflash", config(hidden_act="relu"), "'relu'"),
    "unknown rope": ("dflash", config(rope_scaling={"rope_type": "spiral"}), "'spiral'"),
    "rope without its factor": (
        "dflash",
        config(rope_scaling={"rope_type": "yarn"}),
        "'yarn'.*factor",
    ),
    "text for a number": ("dflash", config(num_hidden_layers="two"), "num_hidden_layers"),
}


@pytest.mark.parametrize("case", CASES)
def test_damage_is_named(case: str, tmp_path: Path) -> None:
    dialect, damage, message = CASES[case]
    written = deepcopy(DIALECTS[dialect])
    damage(written)
    with pytest.raises(ValueError, match=message):
        load_drafter(written.save(tmp_path), TARGET)


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_threshold_out_of_range(threshold: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="confidence_threshold"):
        load_drafter(DIALECTS["deepspec vanilla"].save(tmp_path), TARGET, confidence_threshold=threshold)


def test_threshold_needs_a_head(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no confidence head"):
        load_drafter(dflash().save(tmp_path), TARGET, confidence_threshold=0.5)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        load_drafter(tmp_path / "nowhere", TARGET)
    with pytest.raises(ValueError, match="does not exist"):
        load_drafter("./nowhere", TARGET)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file(name: str, tmp_path: Path) -> None:
    (dflash().save(tmp_path) / name).unlink()
    with pytest.raises(ValueError, match="half-written"):
        load_drafter(tmp_path, TARGET)


@pytest.mark.parametrize("kept", [4, 600, 0.5, 0.999])
def test_truncated_tensors(kept: float, tmp_path: Path) -> None:
    path = dflash().save(tmp_path) / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: kept if isinstance(kept, int) else int(len(data) * kept)])
    with pytest.raises(ValueError, match="half-written"):
        load_drafter(tmp_path, TARGET)


def test_truncated_config(tmp_path: Path) -> None:
    path = dflash().save(tmp_path) / "config.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match="not JSON"):
        load_drafter(tmp_path, TARGET)


def test_config_of_another_kind(tmp_path: Path) -> None:
    (dflash().save(tmp_path) / "config.json").write_text(json.dumps([1, 2]))
    with pytest.raises(ValueError, match="holds a list"):
        load_drafter(tmp_path, TARGET)


def test_missing_shard(tmp_path: Path) -> None:
    (dflash().save(tmp_path, shards=3) / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match="model-00002-of-00003.safetensors not there"):
        load_drafter(tmp_path, TARGET)


def test_shard_without_its_tensors(tmp_path: Path) -> None:
    folder = dflash().save(tmp_path, shards=3)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"] = {name: file for name, file in index["weight_map"].items() if "-00003-" not in file}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="missing: |has no "):
        load_drafter(folder, TARGET)


def test_shards_load_as_one(tmp_path: Path) -> None:
    whole = load_drafter(dflash().save(tmp_path / "whole"), TARGET)
    parts = load_drafter(dflash().save(tmp_path / "parts", shards=3), TARGET)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))
    assert parts.config.mask_token_id == MASK


def test_a_mask_embedding_of_its_own(tmp_path: Path) -> None:
    """It would be drafted with the wrong embedding if the file were passed over."""
    (dflash().save(tmp_path) / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"mask_embedding\.pt"):
        load_drafter(tmp_path, TARGET)


def test_a_target_without_a_head(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no output head"):
        load_drafter(dflash().save(tmp_path), TARGET.model)
