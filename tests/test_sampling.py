"""Sampled output has the target's own distribution: chi-squared of the first tokens against exact probabilities."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import TemperatureLogitsWarper

import reanchor.loop
from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.core import Tree, VerifyResult
from reanchor.sampling import TokenSelector, token_selector
from tests.chances import DEPTH, PROMPT, VOCAB, exact, p_value, processors, tiny_model
from tests.tiny import ScriptedDrafter

DRAWS = 1200


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def draws(model, rules: LogitsProcessorList, config: DecodeConfig, count: int = DRAWS) -> Tensor:
    """How often each sequence of DEPTH tokens was decoded: [VOCAB] * DEPTH"""
    torch.manual_seed(0)
    counts = torch.zeros([VOCAB] * DEPTH, dtype=torch.float64)
    drafter = ScriptedDrafter([0] * 9, "random", block_size=3, vocab=VOCAB)
    drafter.tap_layers = (0,)
    decoder = SpeculativeDecoder(model, drafter, config)
    for _ in range(count):
        selector = TokenSelector(PROMPT, DEPTH + 1, sample=True, processors=rules)
        tokens = [token for step in decoder.decode(PROMPT, selector=selector) for token in step.tokens]
        counts[tuple(tokens[:DEPTH])] += 1
    return counts


CONFIGS = {
    "dflash": DecodeConfig("dflash"),
    "reanchor": DecodeConfig.of(method="reanchor", verifier_path="attach"),
}


@pytest.mark.parametrize("method", CONFIGS)
@pytest.mark.parametrize("rules", ["t1", "t0.7-top-p", "penalty"])
def test_sampled_tokens_have_the_targets_distribution(model, rules, method):
    joint = exact(model, processors(rules))
    assert (joint * DRAWS > 5).sum() > 10  # there is something to tell apart
    assert p_value(draws(model, processors(rules), CONFIGS[method]), joint) > 1e-3


def accepts_any_child(
    tree: Tree, logits: Tensor, selector: TokenSelector, _drawn_from: Tensor | None = None
) -> VerifyResult:
    """A broken verifier: it takes a node's first child whatever the target says."""
    drawn = logits.softmax(-1).multinomial(1)[:, 0].tolist()
    path, tokens = [0], []
    while True:
        children = [node for (parent, _), node in tree.children.items() if parent == path[-1]]
        tokens.append(tree.tokens[children[0]] if children else drawn[path[-1]])
        if selector.commit(tokens[-1]) or not children:
            return VerifyResult(path, tokens, drawn, selector.room == 0)
        path.append(children[0])


def test_a_broken_verifier_fails_the_same_test(model, monkeypatch):
    monkeypatch.setattr(reanchor.loop, "verify", accepts_any_child)
    counts = draws(model, processors("t1"), CONFIGS["reanchor"], 500)
    assert p_value(counts, exact(model, processors("t1"))) < 1e-9


def test_a_wrong_distribution_fails_the_same_test(model):
    """The test has the power to see a wrong temperature."""
    counts = draws(model, LogitsProcessorList([TemperatureLogitsWarper(0.3)]), CONFIGS["reanchor"], 600)
    assert p_value(counts, exact(model, processors("t1"))) < 1e-6


def test_a_seed_repeats_and_leaves_the_global_generator_alone(model):
    decoder = SpeculativeDecoder(model, None)
    sampling = SamplingConfig(max_new_tokens=20, temperature=1.0, seed=7)
    before = torch.get_rng_state()
    runs = [[t for step in decoder.decode(PROMPT, sampling) for t in step.tokens] for _ in range(2)]
    assert runs[0] == runs[1] and torch.equal(before, torch.get_rng_state())


def test_sampling_config_makes_hfs_warpers_in_hfs_order():
    selector = token_selector(SamplingConfig(temperature=0.5, top_k=3, top_p=0.9), PROMPT)
    names = [type(each).__name__ for each in selector.processors]
    assert names == ["TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper"]
    assert selector.prefix_free and selector.sample


@pytest.mark.parametrize(
    "knob, value",
    [("temperature", -1.0), ("temperature", float("nan")), ("top_p", 0.0), ("top_p", 1.1), ("top_k", -1)],
)
def test_bad_sampling_knobs_name_their_value(knob, value):
    with pytest.raises(ValueError, match=f"{knob}.*{value}"):
        SamplingConfig(**{knob: value})
