"""Fusing the weights of a mapped checkpoint gives its pages back, unless that would undo what somebody wrote."""

from __future__ import annotations

import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from reanchor.stack.pages import SMAPS, clean_files, give_back
from reanchor.stack.target import LeanTarget
from tests.tiny import SHAPE, greedy

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells of Linux only")
PROMPT = torch.arange(3, 14)
MIB = 1 << 20


def resident(name: str) -> int:
    """Bytes of a file that this process holds in memory."""
    found, total = False, 0
    for line in SMAPS.read_text().splitlines():
        first, *words = line.split()
        if not first.endswith(":"):
            found = bool(words) and words[-1].endswith(name)
        elif first == "Rss:" and found:
            total += int(words[0]) << 10
    return total


@pytest.fixture
def mapped(tmp_path):
    """A model of some megabytes on its file's own pages, all of them read."""
    shape = {**SHAPE, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    assert sum(float(each.detach().sum()) for each in model.parameters()) != 0
    return model, str(tmp_path / "model.safetensors")


def test_copied_pages_go(mapped):
    model, file = mapped
    truth, before = greedy(model, PROMPT, 8), resident(file)
    fused = sum(
        part.weight.nbytes
        for layer in model.model.layers
        for part in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.self_attn.q_proj)
    )
    assert fused > 8 * MIB and before > fused
    target = LeanTarget(model)
    assert resident(file) < before - 0.9 * fused
    assert greedy(model, PROMPT, 8) == truth and target.weights.current()


def test_a_file_written_to_keeps_its_pages(mapped):
    model, _ = mapped
    held = dict(model.state_dict())
    name = "model.layers.1.mlp.up_proj.weight"
    with torch.no_grad():
        held[name].add_(1.0)
    expected = held[name].clone()
    LeanTarget(model)
    assert torch.equal(held[name], expected)


def test_memory_of_no_file_is_never_touched():
    rows = torch.ones(4 * MIB)
    give_back(rows, clean_files())
    assert bool((rows == 1).all())
