"""Hybrids through the engine: transformers' own tokens whatever is proposed, and a cache that it can go on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from reanchor import DecodeConfig, ReAnchorGenerator, SamplingConfig, SpeculativeDecoder
from reanchor.core import Draft, Retained
from reanchor.graphs.graphed_rounds import graphs_refusal as refused_by_graphs
from tests.tiny import VOCAB, ScriptedDrafter, greedy

from .models import FAMILIES, tiny_hybrid
from .test_models import EVERY, Stepping, assert_states

PROMPT = torch.tensor([3, 14, 15, 9, 2, 6, 5])
NEW = 20
METHODS = {
    "plain": DecodeConfig("plain"),
    "dflash": DecodeConfig("dflash"),
    "reanchor": DecodeConfig.of("reanchor", verifier_path="attach"),
    "ddtree": DecodeConfig("ddtree", max_nodes=9),
    "auto": DecodeConfig("auto", max_nodes=12),
    "auto, exact match": DecodeConfig("auto", max_nodes=12, sampling_mode="exact-match"),
}


class Candid(ScriptedDrafter):
    """Says its candidates as well: the script's token first, or second where it drafts a wrong one."""

    def draft(
        self, anchor: int, retained: Retained, shifts: Sequence[int], cache: list[Tensor], top_k: int = 0
    ) -> Draft:
        draft = super().draft(anchor, retained, shifts, cache, top_k)
        if not top_k:
            return draft
        proposed = torch.tensor([block[1:] for block in draft.blocks])  # [blocks, K]
        ranks = torch.tensor([0, VOCAB - 1, 7])[: min(top_k, 3)]
        candidates = (proposed[:, :, None] + ranks) % VOCAB
        chances = torch.tensor([0.6, 0.3, 0.05])[: len(ranks)].log().expand(candidates.shape)
        return replace(draft, candidates=candidates, log_probs=chances)


@cache
def target_of(family: str, seed: int = 1) -> PreTrainedModel:
    return tiny_hybrid(family, seed)


@cache
def truth_of(family: str, seed: int = 1) -> list[int]:
    return greedy(target_of(family, seed), PROMPT, NEW)


@pytest.mark.parametrize("family", EVERY)
def test_the_script_is_worth_following(family):
    """A constant continuation would hide misplaced states."""
    assert len(set(truth_of(family))) > 5


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", EVERY)
def test_greedy_tokens_are_generates(family, method):
    modes = ((1, "second"),) if method == "plain" else ((1, "second"), (2, "decoy"), (3, "random"))
    for seed, mode in modes:
        model, truth = target_of(family, seed), truth_of(family, seed)
        generator = ReAnchorGenerator(model, Candid(PROMPT.tolist() + truth, mode), config=METHODS[method])
        output = generator.generate(
            PROMPT[None], max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True
        )
        assert output.sequences[0, len(PROMPT) :].tolist() == truth
        if mode == "second" and method != "plain":
            assert output.stats.tau > 1.5


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "family", ["qwen3_next", "qwen3_5", "olmo_hybrid", "lfm2", "nemotron_h", "falcon_h1"]
)
def test_sampled_tokens_are_generates(family, method):
    model = target_of(family)
    for seed in (0, 1):
        torch.manual_seed(seed)
        options = {
            "max_new_tokens": NEW,
            "do_sample": True,
            "temperature": 0.8,
            "top_k": 20,
            "repetition_penalty": 1.1,
        }
        truth = model.generate(PROMPT[None], **options)
        torch.manual_seed(seed)
        generator = ReAnchorGenerator(model, Candid(truth[0].tolist(), "second"), config=METHODS[method])
        assert torch.equal(generator.generate(PROMPT[None], **options), truth)


@pytest.mark.parametrize("family", EVERY)
def test_transformers_goes_on_with_the_cache(family):
    """By single tokens, by several at once, and in its generate."""
    model, truth = target_of(family), truth_of(family)
    generator = ReAnchorGenerator(
        model, Candid(PROMPT.tolist() + truth, "second"), config=METHODS["reanchor"]
    )

    def decoded():
        return generator.generate(
            PROMPT[None], max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True
        )

    ours, text = decoded().past_key_values, Stepping(model, PROMPT.tolist())
    for token in truth[:-1]:
        text.feed([token])
    assert_states(ours, text.cache)
    following = copy_with(text, ours)
    for tokens in ([truth[-1]], [4], [8, 9, 10], [11]):
        wanted = text.feed(tokens)
        torch.testing.assert_close(following.feed(tokens), wanted, rtol=2e-4, atol=1e-4)
    if family != "mamba2":  # transformers cannot go on with a cache that knows no length
        theirs = model.generate(
            PROMPT[None], max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True
        )
        more = [
            model.generate(
                output.sequences, max_new_tokens=6, do_sample=False, **{text.name: output.past_key_values}
            )
            for output in (decoded(), theirs)
        ]
        assert more[0].tolist() == more[1].tolist()
        # transformers' bamba begins to count positions anew there
        assert family == "bamba" or more[0][0, len(PROMPT) :].tolist() == greedy(model, PROMPT, NEW + 6)


def copy_with(text: Stepping, cache: object) -> Stepping:
    other = object.__new__(Stepping)
    vars(other).update(vars(text), cache=cache)
    return other


@pytest.mark.parametrize("family", ["qwen3_5", "lfm2", "bamba"])
def test_states_do_not_drift(family):
    """More than 200 rounds, then against a text read from scratch."""
    model = target_of(family)
    truth = greedy(model, PROMPT, 400)
    drafter = ScriptedDrafter(PROMPT.tolist() + truth, "second", block_size=3)
    steps = list(
        SpeculativeDecoder(model, drafter, DecodeConfig("dflash")).decode(PROMPT, SamplingConfig(400))
    )
    tokens = [token for step in steps for token in step.tokens]
    assert len(steps) > 130 and tokens == truth
    plain = list(SpeculativeDecoder(model, None, DecodeConfig("plain")).decode(PROMPT, SamplingConfig(400)))
    assert len(plain) == 400 and [token for step in plain for token in step.tokens] == truth
    text = Stepping(model, PROMPT.tolist() + truth[:-1])
    for done in (steps, plain):
        assert_states(done[-1].cache, text.cache)


def test_the_lean_stack_and_graphs_decline():
    model = target_of("qwen3_5")
    decoder = SpeculativeDecoder(model, config=DecodeConfig("plain"))
    assert "Qwen3_5ForCausalLM is none of" in decoder.forward_report()["declined"]
    with pytest.raises(ValueError, match="forward 'fused' cannot run Qwen3_5"):
        SpeculativeDecoder(model, config=DecodeConfig("plain", forward="fused"))
    assert "transformers' forward" in refused_by_graphs(decoder.target, decoder.drafter, decoder.config)


def test_every_family_is_here():
    assert set(EVERY) == set(FAMILIES)
