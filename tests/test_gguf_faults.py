"""GGUF files and converted models that are damaged, and what killed conversions leave."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import pytest
from huggingface_hub import constants

from reanchor.cache_folder import cache_folder
from reanchor.gguf import folder_of
from reanchor.loading import load_target


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    """A GGUF file of no size: a llama of one layer."""
    gguf = pytest.importorskip("gguf")
    import numpy as np

    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in (
        ("context_length", 64),
        ("embedding_length", 16),
        ("block_count", 1),
        ("feed_forward_length", 24),
        ("head_count", 2),
        ("head_count_kv", 1),
    ):
        getattr(writer, f"add_{name}")(value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_tokenizer_model("gpt2")
    tokens = [*(chr(33 + each) for each in range(39)), "!!", "<end>"]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 40 + [3])
    writer.add_token_merges(["! !"])
    writer.add_eos_token_id(40)
    shapes = {"token_embd": (41, 16), "output_norm": (16,), "output": (41, 16)}
    layer = {"attn_norm": (16,), "ffn_norm": (16,), "attn_q": (16, 16), "attn_k": (8, 16), "attn_v": (8, 16)}
    layer |= {"attn_output": (16, 16), "ffn_gate": (24, 16), "ffn_up": (24, 16), "ffn_down": (16, 24)}
    shapes |= {f"blk.0.{name}": shape for name, shape in layer.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.full(shape, 0.1, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_file_itself_is_fine(file):
    load_target(file, device="cpu")


def test_truncated_and_mutated_anywhere(file):
    whole, rng = file.read_bytes(), random.Random(7)
    for turn in range(24):
        data = bytearray(whole)
        if turn % 2:
            del data[rng.randrange(4, len(data)) :]
        else:
            for _ in range(8):
                data[rng.randrange(4, 1200)] = rng.randrange(256)
        file.write_bytes(data)
        with suppress(ValueError):
            load_target(file, device="cpu")
    assert not list(cache_folder().glob(".*"))


def test_what_a_killed_conversion_left_is_cleared(file):
    left = cache_folder() / ".conversion-x"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"0" * 100)
    os.utime(left, (0, 0))
    folder_of(file, lambda _message: None)
    assert not left.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_converted_model_names_the_folder_to_delete(file, name):
    folder = folder_of(file, lambda _message: None)
    (folder / name).write_bytes(b"\x00" * 10)
    with pytest.raises(ValueError, match=f"delete the folder {folder}"):
        load_target(file, device="cpu")
