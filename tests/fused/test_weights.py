"""Fused weights are the model's own: in memory once, and still HF's to run, change, move and save."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from reanchor import layer
from reanchor.fused.fused_target import FusedTarget
from reanchor.proposal import TreeBuilder
from tests.fused.models import variant

PROMPT = torch.arange(3, 14)
FAMILIES = ["llama tied", "qwen2", "qwen3", "gemma3"]


def storage_bytes(tensors) -> int:
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def lean_logits(target: FusedTarget) -> torch.Tensor:
    cache = target.new_cache()
    target.prefill(PROMPT, cache)
    return target.verify(TreeBuilder(7).freeze(), cache).logits[-1]


def hf_logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.cat([PROMPT, torch.tensor([7])])[None]).logits[0, -1]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_model_is_in_memory_once(name):
    model = variant(name)
    before = storage_bytes(model.parameters())
    weights = FusedTarget(model).weights
    matrices = [
        part
        for layer in weights.layers
        for affine in (layer.qkv, layer.out, layer.gate_up, layer.down)
        for part in (affine.weight, affine.bias)
        if part is not None
    ]
    assert storage_bytes(model.parameters()) == before
    assert storage_bytes([*model.parameters(), *matrices, weights.head.weight]) == before


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_goes_on_working(name):
    model = variant(name)
    expected, state = hf_logits(model), copy.deepcopy(model.state_dict())
    first = FusedTarget(model)
    addresses = [layer.qkv.weight.data_ptr() for layer in first.weights.layers]
    second = FusedTarget(model)
    assert addresses == [layer.qkv.weight.data_ptr() for layer in second.weights.layers]
    torch.testing.assert_close(hf_logits(model), expected, rtol=0, atol=1e-12)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    torch.testing.assert_close(lean_logits(first), lean_logits(second), rtol=0, atol=0)


def test_a_saved_model_is_whole(tmp_path):
    model = variant("qwen2", torch.float32)
    FusedTarget(model)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())
    written = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert written < 1.1 * storage_bytes(model.parameters())


@pytest.mark.parametrize("name", FAMILIES)
def test_changed_weights_are_seen_by_the_next_decode(name):
    model = variant(name)
    target = FusedTarget(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    torch.testing.assert_close(lean_logits(target), hf_logits(model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_cast_or_reloaded_is_adopted_anew(name):
    model, other = variant(name), variant(name, seed=2)
    target = FusedTarget(model)
    assert target.weights.dtype is torch.float64
    model.float()
    assert lean_logits(target).dtype is torch.float32
    model.double()
    model.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(lean_logits(target), hf_logits(model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_edit_of_data_is_seen(name):
    """It leaves no trace in a parameter's version, and norms are the layers' in a form of their own."""
    model = variant(name)
    target = FusedTarget(model)
    for parameter in model.parameters():
        parameter.data.mul_(1.1)
    torch.testing.assert_close(lean_logits(target), hf_logits(model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_long_prompt_goes_through_the_perceptron_in_parts(name, monkeypatch):
    model = variant(name)
    expected = lean_logits(FusedTarget(model))
    monkeypatch.setattr(layer, "MOST_ROWS", 4)
    torch.testing.assert_close(lean_logits(FusedTarget(model)), expected, rtol=0, atol=1e-12)
