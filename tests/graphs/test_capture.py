"""Captured on a device, whole rounds are the host's path still; eagerly the rest of this folder says so on any CPU."""

from __future__ import annotations

import pytest
import torch

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.fused import graph_runner
from tests import chances
from tests.fused.models import variant
from tests.graphs.drafters import KINDS, block_drafter
from tests.graphs.test_device_selector import METHODS, counted, decoder_of
from tests.graphs.test_graphed_rounds import FEW, NAMES, PROMPT, few_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
BODIES = {"no head": {}, **KINDS, "long blocks": {"block_size": 12}}


@pytest.fixture(autouse=True)
def small_arenas(monkeypatch):
    monkeypatch.setattr(graph_runner, "MIN_ROWS", 256)


def small(device: str = "cuda"):
    """Single precision: what the kernels of a device compute in, and tokens that no rounding swaps."""
    return few_tokens().float().to(device)


def played(decoder, prompt, new: int, **sampling) -> list[tuple]:
    """Tokens and trees of every round."""
    terms = SamplingConfig(max_new_tokens=new, **sampling)
    return [(step.tokens, step.tree) for step in decoder.decode(prompt, terms)]


def made(decoder) -> dict:
    """The regions there are, by what they are for: one decode after another has the same rows."""
    (arena,) = decoder.target.regions.arenas
    return dict(arena.regions)


def same_captured(model, drafter, prompt, new: int = 64, least: int = 10, **knobs):
    """Decode by the host and captured; the decoder that captured."""
    terms = {"method": "reanchor", "forward": "fused", **knobs}
    expected = played(SpeculativeDecoder(model, drafter, DecodeConfig.of(**terms)), prompt, new)
    decoder = SpeculativeDecoder(model, drafter, DecodeConfig.of(**terms, graphs=True))
    for _ in range(2):  # rows that grew in the first are there in the second
        assert played(decoder, prompt, new) == expected
    report, held = decoder.forward_report()["graphs"], made(decoder)
    assert report["refused"] is None and report["whole_rounds"] >= least
    assert held and all(region.graph is not None for region in held.values())
    assert played(decoder, prompt, new) == expected  # by replays alone
    assert made(decoder) == held
    return decoder


@pytest.mark.parametrize("name", NAMES)
def test_plain_decoding(name):
    model = variant(name, torch.float32).cuda()
    same_captured(model, None, PROMPT.cuda(), new=48, least=47, method="plain")


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("method", ["dflash", "reanchor"])
def test_drafters(method, body):
    model = small()
    same_captured(model, block_drafter(model, **BODIES[body]), PROMPT.cuda() % FEW, method=method)


def test_passes_alone_are_captured_too():
    """A method without whole rounds verifies by regions of its own."""
    model = small()
    drafter, prompt = block_drafter(model), PROMPT.cuda() % FEW
    decoder = same_captured(model, drafter, prompt, least=0, attach="longest")
    assert set(made(decoder)) & set(graph_runner.BUCKETS)


def test_rows_that_grow_and_tries_that_do(monkeypatch):
    monkeypatch.setattr(graph_runner, "MIN_ROWS", 0)
    monkeypatch.setattr("reanchor.cache.SLACK", 24)
    model = small()
    decoder = same_captured(model, block_drafter(model, block_size=12), PROMPT.cuda() % FEW, new=300)
    captured = decoder.forward_report()["graphs"]["captured"]
    assert sum(name.startswith("a round of") for name in captured) > 1  # buckets
    assert sum(name.startswith("a draft of") for name in captured) > 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rules", ["t1", "t0.7-top-p", "t1.3-top-k"])
def test_sampled_tokens_have_the_targets_distribution(rules, method, monkeypatch):
    joint = chances.exact(chances.tiny_model(), chances.processors(rules))
    model = chances.tiny_model().cuda()
    assert chances.p_value(counted(model, rules, method, monkeypatch), joint) > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_decides_captured_or_not(method):
    """The decode that captures, the one that replays and one of the same regions as they are draw the same numbers."""
    model, prompt = chances.tiny_model().cuda(), chances.PROMPT.cuda()
    captured, eager = decoder_of(model, method), decoder_of(model, method)
    eager.target.regions.capturing = False
    terms = {"temperature": 1.0, "top_p": 0.9, "new": 40}
    first, again = (played(captured, prompt, seed=7, **terms) for _ in range(2))
    assert first == again == played(eager, prompt, seed=7, **terms)
    assert [step[0] for step in first] != [step[0] for step in played(captured, prompt, seed=8, **terms)]
    assert all(region.graph is not None for region in made(captured).values())
    assert all(region.graph is None for region in made(eager).values())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is no second CUDA device")
def test_a_device_that_is_not_the_current_one():
    for device in ("cuda:0", "cuda:1"):
        model = small(device)
        same_captured(model, block_drafter(model, **KINDS["rnn"]), PROMPT.to(device) % FEW)
