"""Damaged, foreign and misfitting checkpoints: a clear error each, never a wrong draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from reanchor.drafters.loading import load_drafter

from .writer import MASK, Written, dflash, tiny_target

TARGET = tiny_target()


def config(**changes: object) -> Callable[[Written], None]:
    return lambda written: written.config.update(changes)


def nested(**changes: object) -> Callable[[Written], None]:
    return lambda written: written.config["dflash_config"].update(changes)


def drop(name: str) -> Callable[[Written], None]:
    return lambda written: written.tensors.__delitem__(name)


def put(name: str, tensor: torch.Tensor) -> Callable[[Written], None]:
    return lambda written: written.tensors.update({name: tensor})


def forget_mask(written: Written) -> None:
    del written.config["dflash_config"]["mask_token_id"]


DAMAGE: dict[str, tuple[Callable[[Written], None], str]] = {
    "no mask id": (forget_mask, "mask_token_id"),
    "mask id beyond the embedding": (nested(mask_token_id=96), r"mask_token_id is 96.*96 rows"),
    "tap beyond the target": (nested(target_layer_ids=[0, 2, 6]), r"layers \[6\], the target has 6"),
    "another target's depth": (config(num_target_layers=36), "36 layers"),
    "another width": (config(hidden_size=64), "width is 64"),
    "another vocabulary": (config(vocab_size=100), "100 tokens"),
    "wrong shape": (put("fc.weight", torch.zeros(32, 32)), r"fc.weight has shape \[32, 32\], not \[32, 96\]"),
    "missing tensor": (drop("layers.1.mlp.up_proj.weight"), "missing: layers.1.mlp.up_proj.weight"),
    "unexpected tensor": (put("layers.0.extra", torch.zeros(3)), "unexpected: layers.0.extra"),
    "unexpected layer": (config(num_hidden_layers=1), "unexpected: layers.1"),
    "NaN": (put("norm.weight", torch.full((32,), torch.nan)), "'norm.weight'.*NaN"),
    "quantised by config": (config(quantization_config={"bits": 4}), "quantised"),
    "quantised by tensor": (put("fc.weight", torch.zeros(32, 96, dtype=torch.int8)), "quantised"),
    "not a drafter": (drop("fc.weight"), "not a DFlash-family drafter"),
    "block of one": (config(block_size=1), "block_size"),
    "unknown attention": (config(layer_types=["full_attention", "chunked"]), "'chunked'"),
    "layer types too short": (config(layer_types=["full_attention"]), "layer_types"),
    "text for a number": (config(num_hidden_layers="two"), "num_hidden_layers"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(damage: str, tmp_path: Path) -> None:
    written = dflash()
    change, message = DAMAGE[damage]
    change(written)
    with pytest.raises(ValueError, match=message):
        load_drafter(written.save(tmp_path), TARGET)


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


def test_missing_shard(tmp_path: Path) -> None:
    (dflash().save(tmp_path, shards=3) / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match="model-00002-of-00003.safetensors not there"):
        load_drafter(tmp_path, TARGET)


def test_shards_load_as_one(tmp_path: Path) -> None:
    whole = load_drafter(dflash().save(tmp_path / "whole"), TARGET)
    parts = load_drafter(dflash().save(tmp_path / "parts", shards=3), TARGET)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))
    assert parts.config.mask_token_id == MASK
