"""Keys and names of single exporters, each honoured or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from reanchor.drafters.inspection import inspect_drafter
from reanchor.drafters.load import load_drafter

from .writer import HD, TARGET_LAYERS, Facts, H, V, deepspec, dflash, speculators, tiny_target


def gemma() -> Gemma3ForCausalLM:
    config = Gemma3TextConfig(
        vocab_size=V, hidden_size=H, intermediate_size=48, num_hidden_layers=TARGET_LAYERS,
        num_attention_heads=4, num_key_value_heads=2, head_dim=HD,
    )  # fmt: skip
    torch.manual_seed(4)
    return Gemma3ForCausalLM(config).eval().requires_grad_(False)


def test_speculators_read_the_raw_embedding_of_a_gemma_target(tmp_path: Path) -> None:
    folder = speculators("dflash", Facts(), {}, speculators_version="0.8.1").save(tmp_path)
    target = gemma()
    ids = torch.arange(9)
    assert torch.equal(load_drafter(folder, target).embed(ids), target.get_input_embeddings().weight[ids])
    assert "the target's raw embedding times 1" in inspect_drafter(folder)["vocabulary"]


def test_zlabs_is_scaled_as_the_target_scales_and_inspect_says_so(tmp_path: Path) -> None:
    folder, target = dflash().save(tmp_path), gemma()
    ids = torch.arange(9)
    assert torch.equal(load_drafter(folder, target).embed(ids), target.get_input_embeddings()(ids))
    assert "the target's embedding as the target scales it" in inspect_drafter(folder)["vocabulary"]


@pytest.mark.parametrize("key", ["rope_is_neox_style", "is_neox_style"])
def test_interleaved_rotation_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"rotates neighbouring values \\({key} is False\\)"):
        inspect_drafter(dflash(**{key: False}).save(tmp_path / "other"))
    assert key not in inspect_drafter(dflash(**{key: True}).save(tmp_path / "same"))["unused_keys"]


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_modelopts_heads_at_the_top_are_deepspecs(kind: str, tmp_path: Path) -> None:
    written = deepspec(kind)

    def at_the_top(name: str) -> str:
        return name.removeprefix("markov_head.").replace("confidence_head.proj", "confidence_proj")

    target = tiny_target()
    ours = load_drafter(written.save(tmp_path / "deepspec"), target)
    theirs = load_drafter(replace(written, name=at_the_top).save(tmp_path / "modelopt"), target)
    assert ours.config == theirs.config
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name])


def test_a_window_for_all_layers_falls_back_to_the_sliding_window(tmp_path: Path) -> None:
    written = dflash(use_swa=True, sliding_window=6)
    assert inspect_drafter(written.save(tmp_path))["attention"] == ["2 × window 6, bidirectional"]


def test_context_rows_not_yet_written_are_zeros(tmp_path: Path) -> None:
    drafter = load_drafter(dflash().save(tmp_path), tiny_target())
    cache = drafter.new_cache()
    cache.reserve(3)
    assert all(not buffer.any() for buffer in cache.buffers)
