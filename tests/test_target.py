"""A tree in one pass equals its paths one by one; a kept path equals a prompt read from scratch."""

from __future__ import annotations

import copy
import pickle
import random
import weakref
from functools import partial

import pytest
import torch
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from reanchor import SpeculativeDecoder
from reanchor.cache import TreeCache
from reanchor.core import Tree
from reanchor.proposal import TreeBuilder
from reanchor.target import Target
from tests.tiny import FAMILIES, VOCAB, tiny_target


def random_tree(rng: random.Random, nodes: int) -> Tree:
    builder = TreeBuilder(rng.randrange(VOCAB))
    while len(builder.tokens) < nodes:
        stem = builder.paths[rng.randrange(len(builder.paths))] if builder.paths else [0]
        stem = stem[: rng.randint(1, len(stem))]
        tail = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 5))]
        builder.insert([builder.tokens[node] for node in stem] + tail, 0)
    return builder.freeze()


def root_path(tree: Tree, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = tree.parents[node]
    return path[::-1]


@pytest.mark.parametrize("length", [3, 12])  # shorter and longer than the sliding window of 7
@pytest.mark.parametrize("family", FAMILIES)
def test_tree_equals_its_paths_and_commit_equals_from_scratch(family, length):
    # Gemma norms compute in float32 whatever the dtype
    exact = {"rtol": 1e-4, "atol": 1e-5} if "gemma" in family else {"rtol": 1e-7, "atol": 1e-9}
    close = partial(torch.testing.assert_close, **exact)
    model = tiny_target(family, dtype=torch.float64)
    target, rng = Target(model, (0, 2)), random.Random(length)
    committed = [rng.randrange(VOCAB) for _ in range(length)]
    cache = target.new_cache()
    target.prefill(torch.tensor(committed), cache)
    for _round in range(3):
        tree = random_tree(rng, 14)
        output = target.verify(tree, cache)
        for node in range(len(tree)):
            path = root_path(tree, node)
            alone = target.new_cache()
            text = torch.tensor(committed + [tree.tokens[each] for each in path])
            scratch = target.prefill(text, alone)
            close(output.logits[node], scratch.logits[-1])
            close(output.features[path], scratch.features[len(committed) :])
        kept = root_path(tree, rng.randrange(len(tree)))
        cache.commit(kept)
        committed += [tree.tokens[node] for node in kept]
        fresh = target.new_cache()
        target.prefill(torch.tensor(committed), fresh)
        assert cache.length == fresh.length == len(committed)
        for kind, buffer in cache.buffers.items():
            rows = slice(0, cache.length)
            close(buffer[:, :, :, :, rows], fresh.buffers[kind][:, :, :, :, rows])


def test_a_tree_deeper_than_the_window():
    model = tiny_target("gemma3", dtype=torch.float64)
    target = Target(model)
    cache = target.new_cache()
    target.prefill(torch.tensor([1, 2]), cache)
    builder = TreeBuilder(5)
    builder.insert([5, *range(20, 32)], 0)
    builder.insert([5, 20, 21, *range(40, 50)], 0)
    tree = builder.freeze()
    output = target.verify(tree, cache)
    for path in tree.paths:
        text = torch.tensor([1, 2, *(tree.tokens[node] for node in path)])
        torch.testing.assert_close(output.logits[path[-1]], model(text[None]).logits[0, -1])


def test_the_cache_grows_without_losing_rows(monkeypatch):
    monkeypatch.setattr("reanchor.cache.SLACK", 4)
    model = tiny_target("gemma3", dtype=torch.float64)
    target = Target(model)
    cache, text = target.new_cache(), torch.arange(300) % VOCAB
    target.prefill(text[:250], cache)
    before = cache.capacity
    for token in text[250:].tolist():
        output = target.verify(TreeBuilder(token).freeze(), cache)
        cache.commit([0])
    assert cache.capacity > before
    torch.testing.assert_close(output.logits[0], model(text[None]).logits[0, -1])


def test_taps_are_the_raw_layer_outputs():
    """The last layer's too, before the final norm; HF's own tuple has it after."""
    model = tiny_target("qwen3")
    target, text = Target(model, (1, 2)), torch.arange(9)
    with torch.no_grad():
        hidden = model(text[None], output_hidden_states=True).hidden_states
    hooks = [len(layer._forward_hooks) for layer in target.layers]  # HF leaves its own
    features = target.prefill(text, target.new_cache()).features
    torch.testing.assert_close(features[:, :32], hidden[2][0])
    torch.testing.assert_close(model.model.norm(features[:, 32:]), hidden[3][0])
    assert hooks == [len(layer._forward_hooks) for layer in target.layers]


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gemma3"])
def test_tap_before_the_first_layer(family):
    """Layer -1 is what the first layer is given: the embedding, scaled where the family scales it."""
    model = tiny_target(family)
    target, text = Target(model, (-1, 0)), torch.arange(9)
    with torch.no_grad():
        hidden = model(text[None], output_hidden_states=True).hidden_states
    hooks = len(target.layers[0]._forward_pre_hooks)
    features = target.prefill(text, target.new_cache()).features
    torch.testing.assert_close(features, torch.cat([hidden[0][0], hidden[1][0]], -1))
    assert hooks == len(target.layers[0]._forward_pre_hooks)


def test_nan_logits_are_refused():
    model = tiny_target("llama")
    model.model.norm.weight.data[0] = float("nan")
    with pytest.raises(ValueError, match="logits are NaN.*float32"):
        next(SpeculativeDecoder(model).decode([1, 2, 3]))


def test_hooks_go_when_the_forward_fails():
    model = tiny_target("qwen3")
    target = Target(model, (1,))
    with pytest.raises(IndexError):
        target.prefill(torch.tensor([10**6]), target.new_cache())
    assert not any(layer._forward_hooks for layer in target.layers)


def test_targets_a_tree_cannot_be_verified_with_are_refused():
    t5 = T5ForConditionalGeneration(
        T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, vocab_size=32)
    )
    with pytest.raises(ValueError, match="encoder-decoder"):
        Target(t5)
    falcon = FalconForCausalLM(
        FalconConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    )
    with pytest.raises(ValueError, match="no list of layers"):
        Target(falcon)


def test_a_cache_goes_when_nobody_holds_it_and_a_copy_is_its_own():
    model = tiny_target("llama")
    cache = TreeCache(model.config)
    Target(model).prefill(torch.arange(3, 9), cache)
    twin, gone = pickle.loads(pickle.dumps(copy.deepcopy(cache))), weakref.ref(cache)
    del cache
    assert gone() is None  # without a collection
    assert [layer.cache is twin for layer in twin.layers] == [True] * len(twin.layers)
    Target(model).prefill(torch.arange(3, 5), twin)
    assert twin.length == 8
