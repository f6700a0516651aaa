"""The fused forward against HF's: the same logits, features and rows, for every family and what varies in it."""

from __future__ import annotations

import pytest
import torch

from reanchor.core import Tree
from reanchor.fused.fused_target import FusedTarget
from reanchor.proposal import TreeBuilder
from reanchor.target import Target, TargetOutput
from tests.fused.models import VARIANTS, variant

TAPS = (-1, 0, 2)
PATHS = ([1, 2, 3, 4], [1, 2, 9], [7, 8, 8, 8, 8, 8, 8, 8, 8, 3], [7, 6])


def tree(anchor: int = 5) -> Tree:
    builder = TreeBuilder(anchor)
    for path in PATHS:
        builder.insert([anchor, *path], 0)
    return builder.freeze()


def rounds(target: Target, prompt: torch.Tensor) -> tuple[list[TargetOutput], dict[str, torch.Tensor]]:
    """Outputs of a prefill and of two trees with a commit between them, and the committed rows."""
    cache = target.new_cache()
    outputs = [target.prefill(prompt, cache), target.verify(tree(), cache)]
    cache.commit([0, 6, 7, 8])
    outputs.append(target.verify(tree(11), cache))
    cache.commit([0, 1, 2, 5])
    return outputs, {kind: rows[:, :, :, :, : cache.length] for kind, rows in cache.buffers.items()}


@pytest.mark.parametrize("length", [1, 13])
@pytest.mark.parametrize("name", VARIANTS)
def test_equals_transformers_in_double_precision(name, length):
    model, prompt = variant(name), torch.arange(3, 3 + length)
    expected, expected_rows = rounds(Target(model, TAPS), prompt)
    got, rows = rounds(FusedTarget(model, TAPS), prompt)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=1e-10)
        torch.testing.assert_close(ours.features, theirs.features, rtol=0, atol=1e-10)
    for kind in expected_rows:
        torch.testing.assert_close(rows[kind], expected_rows[kind], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gemma3"])
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_is_near_in_lower_precision(name, dtype, bound):
    """Bounds on the largest difference, relative to the largest logit."""
    model, prompt = variant(name, dtype), torch.arange(3, 16)
    expected, got = (rounds(kind(model, TAPS), prompt)[0] for kind in (Target, FusedTarget))
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.logits.dtype is dtype
        assert (ours.logits - theirs.logits).abs().max() <= bound * theirs.logits.abs().max()


@pytest.mark.parametrize("name", ["llama tied", "qwen2", "gemma3"])
def test_a_wrong_weight_is_seen(name):
    """The control: each fused matrix, norm and bias matters to the comparison."""
    model, prompt = variant(name), torch.arange(3, 16)
    expected = rounds(Target(model, TAPS), prompt)[0][-1].logits
    fused = FusedTarget(model, TAPS)
    layer = fused.weights.layers[1]
    parts = [each.weight for each in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    parts += [layer.qkv.bias, layer.attention_norm, layer.mlp_norm, layer.head_scale, layer.mlp_out_norm]
    cache = fused.new_cache()
    fused.prefill(prompt, cache)
    fused.verify(tree(), cache)
    cache.commit([0, 6, 7, 8])
    assert (fused.verify(tree(11), cache).logits - expected).abs().max() < 1e-10
    for part in parts:
        if part is not None:
            before = part.clone()
            with torch.no_grad():
                part.copy_(before.roll(1, 0))
            assert (fused.verify(tree(11), cache).logits - expected).abs().max() > 1e-4
            with torch.no_grad():
                part.copy_(before)
