"""Sampled tokens of whole rounds have the target's own distribution, and a seed repeats them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.fused import graph_runner
from reanchor.graphs.device_selector import DeviceSelector
from reanchor.sampling import TokenSelector
from tests.chances import DEPTH, PROMPT, VOCAB, exact, p_value, processors, tiny_model
from tests.graphs.drafters import block_drafter

DRAWS = 600
METHODS = {"plain": DecodeConfig("plain", graphs=True), "reanchor": DecodeConfig("reanchor", graphs=True)}


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def decoder_of(model, method: str) -> SpeculativeDecoder:
    small = {"target_hidden_size": 16, "hidden_size": 16, "tap_layers": (0,), "block_size": 3}
    drafter = None if method == "plain" else block_drafter(model, **small, target_layers=1)
    return SpeculativeDecoder(model, drafter, METHODS[method])


def counted(model, rules: str, method: str, monkeypatch) -> Tensor:
    """How often each sequence of DEPTH tokens was decoded: [VOCAB] * DEPTH"""
    monkeypatch.setattr(graph_runner, "MIN_ROWS", 64)
    torch.manual_seed(0)
    prompt = PROMPT.to(model.device)
    counts, decoder, accepted = (
        torch.zeros([VOCAB] * DEPTH, dtype=torch.float64),
        decoder_of(model, method),
        0,
    )
    for _ in range(DRAWS):
        selector = TokenSelector(prompt, DEPTH + 2, sample=True, processors=processors(rules))
        steps = list(decoder.decode(prompt, selector=selector))
        accepted += sum(step.accepted for step in steps[2:])
        assert decoder.whole.counts.played >= 1
        tokens = [token for step in steps for token in step.tokens]
        counts[tuple(tokens[:DEPTH])] += 1
    assert method == "plain" or accepted > DRAWS / 10
    return counts


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rules", ["t1", "t0.7-top-p", "t1.3-top-k"])
def test_sampled_tokens_have_the_targets_distribution(model, rules, method, monkeypatch):
    joint = exact(model, processors(rules))
    assert (joint * DRAWS > 5).sum() > 10  # there is something to tell apart
    assert p_value(counted(model, rules, method, monkeypatch), joint) > 1e-3


def same_race(self, logits: Tensor) -> Tensor:
    """A broken draw: tokens race without their probabilities."""
    scores = self.processors(self.text, logits.float())
    times = torch.empty_like(scores).exponential_(generator=self.generator)
    return (-times).where(scores.isfinite(), -torch.inf).argmax(-1)


def test_a_broken_draw_fails_the_same_test(model, monkeypatch):
    monkeypatch.setattr(DeviceSelector, "pick", same_race)
    assert (
        p_value(counted(model, "t0.7-top-p", "reanchor", monkeypatch), exact(model, processors("t0.7-top-p")))
        < 1e-6
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_repeats_and_another_differs(model, method, monkeypatch):
    monkeypatch.setattr(graph_runner, "MIN_ROWS", 64)
    decoder = decoder_of(model, method)

    def decoded(seed: int, **rules) -> list[int]:
        sampling = SamplingConfig(max_new_tokens=24, temperature=1.0, seed=seed, **rules)
        return [token for step in decoder.decode(PROMPT, sampling) for token in step.tokens]

    first, greedy, other, again = decoded(7), decoded(7, top_k=1), decoded(8), decoded(7)
    assert first == again != other
    ordinary = SpeculativeDecoder(model, None).decode(PROMPT, SamplingConfig(max_new_tokens=24))
    assert greedy == [token for step in ordinary for token in step.tokens]  # regions follow other rules
