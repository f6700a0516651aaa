"""Long random runs of verify, commit and growth equal recomputation from scratch, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reanchor import cache as cache_room
from reanchor.attention.problem import words_for
from reanchor.core import ROOT, Tree
from reanchor.target import Target
from tests.attention.problems import ancestry
from tests.tiny import VOCAB, tiny_target

FAMILIES = ["qwen3", "gemma3", "mistral"]  # full layers, both kinds, sliding layers only
ROUNDS = 7
WIDER = 3  # a bucket is wider than the tree


def random_tree(anchor: int, nodes: int, rng: np.random.Generator) -> Tree:
    parents = [-1, *(int(rng.integers(max(0, node - 4), node)) for node in range(1, nodes))]
    _, depths = ancestry(parents)
    tokens = [anchor, *rng.integers(VOCAB, size=nodes - 1).tolist()]
    return Tree(tokens, parents, depths, [ROOT] * nodes, [])


def branch(tree: Tree, node: int) -> list[int]:
    """Nodes from the root to `node`."""
    path = [node]
    while tree.parents[path[0]] >= 0:
        path.insert(0, tree.parents[path[0]])
    return path


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("on_device", [False, True])
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), prompt_length=st.integers(1, 12))
@torch.no_grad()
def test_runs_equal_recomputation(family, on_device, seed, prompt_length):
    rng = np.random.default_rng(seed)
    target = Target(tiny_target(family, dtype=torch.float64), tap_layers=(1,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_room, "SLACK", 4)  # so that runs this short grow several times
        cache = target.new_cache()
        text = rng.integers(VOCAB, size=prompt_length).tolist()
        target.prefill(torch.tensor(text), cache)
        for _ in range(ROUNDS):
            tree = random_tree(int(rng.integers(VOCAB)), int(rng.integers(1, 10)), rng)
            cache.reserve(len(tree) + WIDER)
            output = target.verify(tree, cache)
            for node in {len(tree) - 1, int(rng.integers(len(tree)))}:
                path = branch(tree, node)
                alone = target.prefill(
                    torch.tensor(text + [tree.tokens[each] for each in path]), target.new_cache()
                )
                assert torch.allclose(output.logits[node], alone.logits[-1], rtol=0, atol=1e-9)
                assert torch.allclose(output.features[path], alone.features[len(text) :], rtol=0, atol=1e-9)
            path = branch(tree, int(rng.integers(len(tree))))
            commit(cache, path, len(tree), on_device)
            text += [tree.tokens[node] for node in path]
        rows_equal_recomputation(target, cache, text)


def commit(cache: cache_room.TreeCache, path: list[int], nodes: int, on_device: bool) -> None:
    if not on_device:
        return cache.commit(path)
    padded = torch.tensor([*path, *range(len(path), nodes + WIDER)])
    cache.commit_on_device(padded, torch.tensor([len(path)]))
    cache.catch_up(len(path))


def rows_equal_recomputation(target: Target, cache: cache_room.TreeCache, text: list[int]) -> None:
    fresh = target.new_cache()
    target.prefill(torch.tensor(text), fresh)
    assert cache.length == fresh.length == len(text) == int(cache.device_length())
    assert cache.capacity >= len(text)
    for ours, theirs in zip(cache.layers, fresh.layers, strict=True):
        for name in ("keys", "values"):
            rows, expected = (getattr(each, name)[0, :, : len(text)] for each in (ours, theirs))
            assert torch.allclose(rows, expected, rtol=0, atol=1e-9)


def test_the_device_length_follows_the_host():
    target = Target(tiny_target("llama"))
    cache = target.new_cache()
    with torch.no_grad():
        target.prefill(torch.arange(5), cache)
    length = cache.device_length()
    assert length.tolist() == [5] and length.dtype == torch.int32
    cache.reserve(3)
    cache.commit([0, 2])
    cache.crop(-1)
    assert length.tolist() == [6] == [cache.length]
    cache.commit_on_device(torch.tensor([0, 1]), torch.tensor([1]))
    cache.catch_up(1)
    assert length.tolist() == [7] == [cache.length]
    cache.reset()
    assert length.tolist() == [0] == [cache.length]


def test_words_are_counted_up():
    assert [words_for(tail) for tail in (0, 1, 32, 33, 256, 271)] == [0, 1, 1, 2, 8, 9]
