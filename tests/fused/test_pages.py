"""Fusing the weights of a mapped checkpoint gives its pages back, unless that would undo what somebody wrote."""

from __future__ import annotations

import os

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from reanchor import SamplingConfig, SpeculativeDecoder
from reanchor.fused.fused_target import FusedTarget
from reanchor.fused.pages import PAGEMAP, SMAPS, clean_files, give_back
from reanchor.packing import packable
from tests.tiny import SHAPE, greedy

pytestmark = pytest.mark.skipif(
    not os.access(PAGEMAP, os.R_OK), reason="the system does not tell of its pages"
)
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
    target = FusedTarget(model)
    assert resident(file) < before - 0.9 * fused
    assert greedy(model, PROMPT, 8) == truth and target.weights.current()


def decoded(target):
    return [
        token
        for step in SpeculativeDecoder(target.model).decode(PROMPT, SamplingConfig(max_new_tokens=8))
        for token in step.tokens
    ]


def test_matrices_of_a_mapped_file_are_packed_and_shared(mapped):
    model, file = mapped
    truth = greedy(model, PROMPT, 8)
    one, two = FusedTarget(model), FusedTarget(model)
    if not packable(model.lm_head.weight):
        pytest.skip("nothing is packed here")
    assert one.forward_report()["packed"] and one.weights.head.weight.is_mkldnn
    assert all(
        mine.down.weight is his.down.weight
        for mine, his in zip(one.weights.layers, two.weights.layers, strict=True)
    )
    assert resident(file) < MIB  # norms, and ends of pages
    assert decoded(one) == truth and resident(file) < MIB


def edit_data(model):
    model.model.layers[2].mlp.down_proj.weight.data[5].mul_(-3.0)


def edit_in_place(model):
    with torch.no_grad():
        model.model.layers[2].self_attn.o_proj.weight.mul_(-3.0)


def edit_head(model):
    model.lm_head.weight.data.mul_(-1.0)


@pytest.mark.parametrize("edit", [edit_data, edit_in_place, edit_head])
def test_packed_matrices_follow_their_parameters(mapped, edit):
    model, _ = mapped
    target = FusedTarget(model)
    decoder = SpeculativeDecoder(model)
    before = decoded(target)
    assert target.weights.current()
    edit(model)
    assert not target.weights.current()
    truth = greedy(model, PROMPT, 8)
    steps = decoder.decode(PROMPT, SamplingConfig(max_new_tokens=8))
    assert [token for step in steps for token in step.tokens] == truth
    target.new_cache()
    assert target.weights.current() and truth != before


def test_what_others_read_is_given_back(mapped):
    model, file = mapped
    target = FusedTarget(model)
    if not target.weights.packed:
        pytest.skip("nothing is packed here")
    greedy(model, PROMPT, 8)
    assert resident(file) > 8 * MIB
    target.weights.release()
    assert resident(file) < MIB


def test_a_file_written_to_keeps_its_pages(mapped):
    model, _ = mapped
    held = dict(model.state_dict())
    name = "model.layers.1.mlp.up_proj.weight"
    with torch.no_grad():
        held[name].add_(1.0)
    expected = held[name].clone()
    FusedTarget(model)
    assert torch.equal(held[name], expected)


def test_memory_of_no_file_is_never_touched():
    rows = torch.ones(4 * MIB)
    give_back(rows, clean_files())
    assert bool((rows == 1).all())
