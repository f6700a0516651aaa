"""The first law: speculative decoding gives the target's own greedy tokens, whatever is proposed."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.config import ReAnchorRules
from reanchor.core import ROOT, Round
from tests.tiny import FAMILIES, ScriptedDrafter, greedy, tiny_target

PROMPT = torch.tensor([3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9])
NEW = 30


@cache
def pair(family: str):
    model = tiny_target(family)
    return model, greedy(model, PROMPT, NEW)


def run(model, drafter, config=None, new=NEW, **options) -> list[Round]:
    decoder = SpeculativeDecoder(model, drafter, config or DecodeConfig("reanchor"))
    return list(decoder.decode(PROMPT, SamplingConfig(max_new_tokens=new), **options))


def tokens(steps: list[Round]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_script_is_worth_following(family):
    """A constant continuation would hide misplaced rows."""
    assert len(set(pair(family)[1])) > 5


@pytest.mark.parametrize("mode", ["right", "wrong", "second", "random"])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_plain_in_every_family(family, mode):
    model, truth = pair(family)
    for path, budget in itertools.product(("off", "attach"), (None, 7)):
        drafter = ScriptedDrafter(PROMPT.tolist() + truth, mode)
        steps = run(model, drafter, DecodeConfig.of(method="reanchor", verifier_path=path, max_nodes=budget))
        assert tokens(steps) == truth
        assert all(len(step.tree) <= (budget or 10**9) for step in steps)


@pytest.mark.parametrize("mode", ["right", "wrong", "second", "random", "decoy"])
@pytest.mark.parametrize("attach", ["earliest", "fixed", "longest", "random"])
def test_equals_plain_under_every_rule(attach, mode):
    model, truth = pair("gemma3")
    for retention, scope, path, budget in itertools.product(
        ("first", "longest"), ("full", "in_block", "extension"), ("off", "path", "attach"), (None, 1, 4)
    ):
        config = DecodeConfig("reanchor", ReAnchorRules(attach, retention, scope, path), max_nodes=budget)
        assert tokens(run(model, ScriptedDrafter(PROMPT.tolist() + truth, mode), config)) == truth


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_method_commits_what_it_should(dtype):
    model = tiny_target("qwen3", dtype=dtype)
    truth = greedy(model, PROMPT, NEW)
    script = PROMPT.tolist() + truth
    rounds = {}
    for method in ("plain", "dflash", "reanchor"):
        steps = run(model, ScriptedDrafter(script), DecodeConfig(method))
        assert tokens(steps) == truth
        rounds[method] = len(steps) - 1
    assert rounds == {"plain": NEW - 1, "dflash": -(-(NEW - 1) // 5), "reanchor": -(-(NEW - 1) // 5)}


def test_plain_needs_no_drafter_and_verifies_no_tree():
    model, truth = pair("llama")
    steps = run(model, None, DecodeConfig("plain"))
    assert tokens(steps) == truth and len(steps) == NEW and all(len(step.tree) == 1 for step in steps)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("budget", [None, 1, 7])
def test_without_a_drafter_auto_speculates(family, budget):
    """The default without a drafter is method auto: recycled tokens and prompt lookup, and the same tokens."""
    model, truth = pair(family)
    steps = run(model, None, DecodeConfig(max_nodes=budget))
    assert tokens(steps) == truth and not any(step.drafted for step in steps)
    if budget == 7:
        repeating = torch.cat([PROMPT, torch.tensor(truth)] * 2)
        decoder = SpeculativeDecoder(model, None, DecodeConfig(max_nodes=budget))
        assert any(step.accepted for step in decoder.decode(repeating, SamplingConfig(max_new_tokens=NEW)))


@pytest.mark.parametrize("method", ["reanchor", "dflash", "ddtree"])
def test_a_method_that_needs_a_drafter_says_so(method):
    with pytest.raises(ValueError, match=f"{method}' needs a drafter.*method auto or plain"):
        SpeculativeDecoder(pair("llama")[0], None, DecodeConfig(method))


def test_what_is_no_drafter_is_refused():
    with pytest.raises(ValueError, match="the drafter is a object, not a reanchor.Drafter"):
        SpeculativeDecoder(pair("llama")[0], object())


def test_shifted_blocks_earn_tokens():
    """Rows the decoy's shifted blocks get accepted stand behind the baseline's rejected ones."""
    model, truth = pair("qwen3")
    drafter = ScriptedDrafter(PROMPT.tolist() + truth, "decoy")
    steps = run(model, drafter)
    assert tokens(steps) == truth
    assert any(origin > 0 for step in steps for origin in step.origins)
    assert any(path != list(range(len(path))) for path in (step.result.path for step in steps))
    assert len(steps) < len(run(model, drafter, DecodeConfig("dflash")))


@pytest.mark.parametrize("new", [1, 2, 3, 5, 6, 7])
def test_length_limit_is_exact(new):
    model, truth = pair("qwen3")
    steps = run(model, ScriptedDrafter(PROMPT.tolist() + truth), new=new)
    assert tokens(steps) == truth[:new] and steps[-1].stopped
    assert all(max(step.tree.depths) <= new for step in steps)


@pytest.mark.parametrize("place", range(12))
def test_nothing_lies_beyond_an_end_token(place):
    model, truth = pair("qwen3")
    end = truth[place]
    steps = run(model, ScriptedDrafter(PROMPT.tolist() + truth), end_ids=(end, VOCAB_OUTSIDE))
    expected = truth[: truth.index(end) + 1]
    assert tokens(steps) == expected and steps[-1].stopped
    assert steps[-1].cache.length == len(PROMPT) + len(expected) - 1


VOCAB_OUTSIDE = 10**6


def test_origins_name_the_source_of_every_token():
    model, truth = pair("qwen3")
    steps = run(model, ScriptedDrafter(PROMPT.tolist() + truth))
    assert [step.origins for step in steps[1:3]] == [[0, 0, 0, 0, ROOT]] * 2
    assert [step.accepted for step in steps[1:3]] == [4, 4]


def test_a_draft_that_ends_decoding_is_no_bonus():
    model, truth = pair("qwen3")
    end = next(token for place, token in enumerate(truth) if place >= 2 and truth.index(token) == place)
    steps = run(model, ScriptedDrafter(PROMPT.tolist() + truth), end_ids=(end,))
    assert ROOT not in steps[-1].origins and steps[-1].accepted == len(steps[-1].tokens)


@pytest.mark.parametrize(
    "prompt, reason",
    [
        ([], "at least one token"),
        ([[1, 2]], "at least one token"),
        ([70], "vocabulary"),
        ([1] * 512, "context"),
    ],
)
def test_bad_prompts_are_refused(prompt, reason):
    with pytest.raises(ValueError, match=reason):
        SpeculativeDecoder(pair("qwen3")[0]).decode(torch.tensor(prompt, dtype=torch.long))


def test_a_drafter_that_reads_missing_layers_is_refused():
    drafter = ScriptedDrafter([0])
    drafter.tap_layers = (0, 3)
    with pytest.raises(ValueError, match=r"layers \[3\].*0 to 2"):
        SpeculativeDecoder(pair("qwen3")[0], drafter)
