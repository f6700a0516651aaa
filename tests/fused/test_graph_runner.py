"""Regions of fixed shapes, run eagerly as they would be captured: padding changes nothing, rows are lent and taken
back, and nothing in a region asks the host.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.attention import triton
from reanchor.attention.problem import Problem, Visibility
from reanchor.core import Tree
from reanchor.fused import graph_runner
from reanchor.fused.fused_target import FusedTarget
from reanchor.fused.graph_runner import BUCKETS, GraphCallable, bucket_for, packed
from reanchor.proposal import TreeBuilder
from tests.fused.models import variant
from tests.tiny import VOCAB, ScriptedDrafter, greedy

PROMPT = torch.arange(3, 14)
NAMES = ["llama", "mistral", "qwen2", "qwen3 sliding", "gemma2", "gemma3", "gemma4", "gemma4 keys as values"]


@pytest.fixture(autouse=True)
def small_arenas(monkeypatch):
    monkeypatch.setattr(graph_runner, "MIN_ROWS", 256)


def random_tree(nodes: int, rng: random.Random) -> Tree:
    builder = TreeBuilder(rng.randrange(VOCAB), max_nodes=nodes)
    while len(builder.tokens) < nodes:
        builder.insert([builder.tokens[0], *(rng.randrange(VOCAB) for _ in range(rng.randint(1, 9)))], 0)
    return builder.freeze()


def random_path(tree: Tree, rng: random.Random) -> list[int]:
    path = [0]
    while children := [node for (parent, _), node in tree.children.items() if parent == path[-1]]:
        path.append(rng.choice(children))
    return path[: rng.randint(1, len(path))]


@pytest.mark.parametrize("name", NAMES)
def test_a_region_is_the_pass_it_pads(name):
    model, rng = variant(name), random.Random(0)
    plain, padded = FusedTarget(model, (0, 2)), FusedTarget(model, (0, 2), graphs=True)
    caches = [target.new_cache() for target in (plain, padded)]
    for target, cache in zip((plain, padded), caches, strict=True):
        target.prefill(PROMPT, cache)
    for nodes in (129, 1, 2, 16, 17, 33, 1, 100):  # the widest first: rows that grow would drop the others
        tree = random_tree(nodes, rng)
        expected, got = plain.verify(tree, caches[0]), padded.verify(tree, caches[1])
        torch.testing.assert_close(got.logits, expected.logits, rtol=0, atol=1e-10)
        torch.testing.assert_close(got.features, expected.features, rtol=0, atol=1e-10)
        path = random_path(tree, rng)
        for cache in caches:
            cache.commit(path)
        assert int(caches[1].device_length()) == caches[0].length
    assert set(padded.regions.arenas[0].regions) == {1, 16, 32, 64, 128, 256}
    for kind, rows in caches[0].buffers.items():
        ours = caches[1].buffers[kind][:, :, :, :, : caches[1].length]
        torch.testing.assert_close(ours, rows[:, :, :, :, : caches[0].length], rtol=0, atol=1e-10)


def graphed(model, drafter=None, **knobs) -> SpeculativeDecoder:
    decoder = SpeculativeDecoder(
        model, drafter, DecodeConfig.of(**{"method": "reanchor" if drafter else "plain", **knobs})
    )
    decoder.target = FusedTarget(model, decoder.target.tap_layers, graphs=True)
    return decoder


def tokens(decoder, new=24) -> list[int]:
    steps = list(decoder.decode(PROMPT, SamplingConfig(max_new_tokens=new)))
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method, mode", [("plain", "right"), ("dflash", "second"), ("reanchor", "decoy")])
def test_a_decode_by_regions_is_the_target_s_own(name, method, mode):
    model = variant(name, torch.float32)
    truth = greedy(model, PROMPT, 32)
    decoder = graphed(model, ScriptedDrafter([*PROMPT.tolist(), *truth], mode), method=method)
    assert tokens(decoder) == truth[:24]
    assert decoder.target.regions.arenas[0].regions


def test_rows_are_lent_to_one_decode_after_another():
    model = variant("llama", torch.float32)
    decoder, truth = graphed(model), greedy(model, PROMPT, 24)
    assert tokens(decoder) == truth
    made = decoder.target.regions.arenas[0].regions[1]
    assert tokens(decoder) == truth
    assert len(decoder.target.regions.arenas) == 1
    assert decoder.target.regions.arenas[0].regions[1] is made


def test_a_cache_still_held_keeps_its_rows():
    model = variant("llama", torch.float32)
    decoder, truth = graphed(model), greedy(model, PROMPT, 24)
    first = list(decoder.decode(PROMPT, SamplingConfig(max_new_tokens=24)))
    kept = {kind: rows.clone() for kind, rows in first[-1].cache.buffers.items()}
    assert tokens(decoder) == truth
    assert len(decoder.target.regions.arenas) == 2
    assert all(torch.equal(rows, kept[kind]) for kind, rows in first[-1].cache.buffers.items())


def test_rows_that_grow_take_their_regions_with_them(monkeypatch):
    monkeypatch.setattr(graph_runner, "MIN_ROWS", 0)
    monkeypatch.setattr("reanchor.cache.SLACK", 24)
    model = variant("gemma3", torch.float32)
    decoder, truth = graphed(model), greedy(model, PROMPT, 80)
    made = []
    monkeypatch.setattr(
        GraphCallable,
        "stage",
        lambda self, tree, old=GraphCallable.stage: (made.append(self), old(self, tree))[1],
    )
    assert tokens(decoder, 80) == truth
    assert len(set(map(id, made))) > 1


def test_weights_that_change_take_all_regions_with_them():
    model = variant("llama", torch.float32)
    decoder = graphed(model)
    tokens(decoder)
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    assert tokens(decoder) == greedy(model, PROMPT, 24)


def test_an_embedding_that_moved_takes_all_regions_with_it():
    """They hold its address, though it is a module that is called."""
    model = variant("llama", torch.float32)
    decoder = graphed(model)
    tokens(decoder)
    first = decoder.target.regions
    model.model.embed_tokens.weight.data = model.model.embed_tokens.weight.data.roll(1, 0)
    assert tokens(decoder) == greedy(model, PROMPT, 24)
    assert decoder.target.regions is not first


def test_a_tree_beyond_the_largest_bucket_goes_without(monkeypatch):
    monkeypatch.setattr(graph_runner, "BUCKETS", (1, 16))
    model, rng = variant("llama"), random.Random(1)
    plain, padded = FusedTarget(model), FusedTarget(model, graphs=True)
    tree = random_tree(20, rng)
    caches = [target.new_cache() for target in (plain, padded)]
    outputs = []
    for target, cache in zip((plain, padded), caches, strict=True):
        target.prefill(PROMPT, cache)
        outputs.append(target.verify(tree, cache).logits)
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)
    assert not padded.regions.arenas[0].regions


@pytest.mark.parametrize("nodes", [1, 2, 16, 31, 32, 33, 100, 256])
def test_a_packed_tree_is_its_visibility(nodes):
    tree, bucket = random_tree(nodes, random.Random(nodes)), bucket_for(nodes)
    assert bucket in BUCKETS and nodes <= bucket
    tokens_, depths, words = torch.from_numpy(packed(tree, bucket)).split(
        [bucket, bucket, bucket * -(-bucket // 32)]
    )
    expected = Visibility.pack(tree.ancestry(), tree.depths, 0).tail_mask()
    seen = Visibility(torch.zeros(1), words.view(bucket, -1), depths, depths, 0).tail_mask()
    assert torch.equal(seen[:nodes, :nodes], expected)
    assert (
        torch.equal(seen[nodes:], torch.eye(bucket, dtype=torch.bool)[nodes:])
        and not seen[:nodes, nodes:].any()
    )
    assert tokens_[:nodes].tolist() == tree.tokens and set(tokens_[nodes:].tolist()) <= {tree.tokens[0]}
    assert depths[:nodes].tolist() == tree.depths


def test_a_failed_capture_is_reported_and_decoding_goes_on(monkeypatch):
    model = variant("llama", torch.float32)
    decoder, truth = graphed(model), greedy(model, PROMPT, 24)
    said: list[str] = []
    held = decoder.target.regions
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)

    def fail(_region: GraphCallable, *_where: object) -> None:
        raise RuntimeError("no graph today")

    monkeypatch.setattr(GraphCallable, "capture", fail)
    held.capturing, held.say = True, said.append
    assert tokens(decoder) == truth
    assert said == ["Capturing the graph of a pass over 1 nodes"]
    assert "no graph today" in decoder.target.forward_report()["graphs"]["refused"]


def traced(name: str, spoil) -> None:
    """One region under tensors that have no values; the attention operator stands as it would on CUDA."""
    target = FusedTarget(variant(name, torch.bfloat16), (0, 2), graphs=True)
    cache = target.new_cache()
    target.prefill(PROMPT, cache)
    region = GraphCallable(target, cache, 32)
    target.over = lambda sees: (
        lambda shape, queries, keys, values: triton.attend(
            Problem(queries, keys, values, sees, shape.scale, shape.window, shape.softcap)
        )
    )
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        region.length, region.tree = mode.from_tensor(region.length), mode.from_tensor(region.tree)
        region.rows = [tuple(mode.from_tensor(rows) for rows in pair) for pair in region.rows]
        spoil(region)
        logits, features = region.run()
        assert logits.shape == (32, VOCAB) and features.shape == (32, 64)


@pytest.mark.parametrize("name", NAMES)
def test_a_region_asks_nothing_of_the_host(name):
    pytest.importorskip("triton", reason="triton is not installed")
    traced(name, lambda region: None)


def test_a_region_that_asks_is_caught():
    pytest.importorskip("triton", reason="triton is not installed")

    def spoil(region: GraphCallable) -> None:
        inner = region.target.over
        region.target.over = lambda sees: (int(sees.length), inner(sees))[1]

    with pytest.raises(DataDependentOutputException):
        traced("llama", spoil)
