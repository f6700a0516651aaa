"""The whole engine by every backend: the same tokens and the same accepted lengths."""

from __future__ import annotations

import os

import pytest
import torch

from reanchor import DecodeConfig, SamplingConfig
from reanchor.attention.problem import Problem
from reanchor.attention.table import BACKENDS, Backend
from reanchor.config import AttentionChoice
from reanchor.decoder import SpeculativeDecoder
from reanchor.drafters.load import load_drafter
from reanchor.loading import load_pair
from tests.drafters.test_matrix import NEW, PROMPT, fitted, target_of
from tests.drafters.writer import DIALECTS
from tests.tiny import FAMILIES, ScriptedDrafter, greedy, tiny_target

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
PLAIN_CHOICES = ["auto", "sdpa", "reference"]
LONG = 24


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def run(model, prompt, script, mode, new=LONG, dense=False, forward="transformers", **knobs):
    """Tokens, drafts accepted per round, backends used."""
    drafter = ScriptedDrafter(script, mode)
    decoder = SpeculativeDecoder(
        model, drafter, DecodeConfig.of(forward=forward, **{"method": "reanchor", **knobs})
    )
    if dense:
        decoder.target.scope = None
    steps = list(decoder.decode(prompt, SamplingConfig(max_new_tokens=new)))
    tokens = [token for step in steps for token in step.tokens]
    return tokens, [step.accepted for step in steps], decoder.target.attention.used


def setup(family, new=LONG):
    model = tiny_target(family)
    prompt = torch.arange(3, 14)
    script = [*prompt.tolist(), *greedy(model, prompt, new + 8)]
    return model, prompt, script


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["right", "second", "random"])
@pytest.mark.parametrize("choice", PLAIN_CHOICES)
@pytest.mark.parametrize("forward", ["transformers", "auto"])
def test_every_backend_decodes_the_same(family, mode, choice, forward):
    if choice == "sdpa" and family == "gemma2":
        pytest.skip("sdpa has no soft cap")
    model, prompt, script = setup(family)
    tokens, accepted, used = run(model, prompt, script, mode, attention=choice, forward=forward)
    by_dense_mask = run(model, prompt, script, mode, dense=True)
    assert used and not by_dense_mask[2]
    assert tokens == script[len(prompt) :][:LONG]
    assert (tokens, accepted) == by_dense_mask[:2]
    assert mode == "random" or max(accepted) > 1


@pytest.mark.skipif(not INTERPRETED, reason="runs under Triton's interpreter, see test_interpreter.py")
@pytest.mark.parametrize(
    "family, forward",
    [("llama", "transformers"), ("qwen3", "auto"), ("gemma2", "auto"), ("gemma3", "transformers")],
)
@pytest.mark.parametrize("choice", ["triton", "flash"])
def test_the_kernels_decode_the_same(family, forward, choice):
    if choice == "flash" and family == "gemma2":
        pytest.skip("torch's flash kernels have no soft cap")
    model, prompt, script = setup(family, new=10)
    tokens, accepted, used = run(model, prompt, script, "second", new=10, attention=choice, forward=forward)
    assert used == (choice,)
    assert (tokens, accepted) == run(model, prompt, script, "second", new=10, dense=True)[:2]
    assert tokens == script[len(prompt) :][:10]


@pytest.mark.slow
@pytest.mark.parametrize("forward", ["transformers", "auto"])
def test_kernels_and_backends_agree_on_the_embedded_pair(forward):
    """Single precision; under the interpreter by the kernels too, for fewer tokens."""
    pair = load_pair("demo", "demo")
    prompt = torch.as_tensor(
        pair.tokenizer("The three primary colours are", return_tensors="pt").input_ids[0]
    )
    choices, new = (["triton", "flash"], 5) if INTERPRETED else (["auto", "reference"], 48)
    limit = SamplingConfig(max_new_tokens=new)
    dense = SpeculativeDecoder(pair.target, pair.drafter, DecodeConfig("reanchor", forward="transformers"))
    dense.target.scope = None
    expected = [(step.tokens, step.accepted) for step in dense.decode(prompt, limit)]
    for choice in choices:
        decoder = SpeculativeDecoder(
            pair.target, pair.drafter, DecodeConfig("reanchor", attention=choice, forward=forward)
        )
        assert [(step.tokens, step.accepted) for step in decoder.decode(prompt, limit)] == expected
        assert decoder.target.attention.used == ("sdpa" if choice == "auto" else choice,)


@pytest.mark.skipif(INTERPRETED, reason="triton serves the CPU in this process")
def test_a_backend_that_cannot_is_refused_by_name():
    model, prompt, script = setup("qwen3", new=4)
    with pytest.raises(ValueError, match="attention 'triton' declined: .*CUDA device.*use 'auto'"):
        run(model, prompt, script, "right", attention="triton")
    with pytest.raises(ValueError, match="attention must be one of"):
        DecodeConfig("reanchor", attention="eager")


def test_a_model_out_of_reach_decodes_by_its_own_attention_and_says_so(monkeypatch):
    model, prompt, script = setup("llama", new=6)
    monkeypatch.setattr(type(model), "_supports_attention_backend", False)
    decoder = SpeculativeDecoder(
        model, ScriptedDrafter(script, "second"), DecodeConfig("reanchor", forward="transformers")
    )
    steps = list(decoder.decode(prompt, SamplingConfig(max_new_tokens=6)))
    assert [token for step in steps for token in step.tokens] == script[len(prompt) :][:6]
    report = decoder.target.attention.report()
    assert report["used"] == ["the model's own"]
    assert "attention interface" in report["declined"]["ours"][0]
    with pytest.raises(ValueError, match="'sdpa' cannot serve this model"):
        SpeculativeDecoder(model, None, DecodeConfig("plain", attention="sdpa", forward="transformers"))


@pytest.mark.parametrize("dialect", ["dflash", "dflash swa", "dflash2"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_draft_blocks_go_through_the_chosen_backend(dialect, family, tmp_path, monkeypatch):
    """With a real block drafter: the same drafts, the same acceptance, and every block attended by the backend."""
    target = target_of(family)
    drafter = load_drafter(fitted(DIALECTS[dialect], target).save(tmp_path), target)
    sizes, results = [], []
    for choice in ("sdpa", "reference"):
        sound = BACKENDS[choice]

        def attend(given: Problem, sound: Backend = sound) -> torch.Tensor:
            sizes.append(given.sees.tail - given.sees.queries)
            return sound.attend(given)

        monkeypatch.setitem(BACKENDS, choice, Backend(choice, sound.decline, attend))
        decoder = SpeculativeDecoder(target, drafter, DecodeConfig("reanchor", attention=choice))
        steps = list(decoder.decode(PROMPT, SamplingConfig(max_new_tokens=NEW)))
        results.append([(step.tokens, step.drafted, step.tree.tokens) for step in steps])
        assert decoder.target.attention.used == (choice,)
    assert results[0] == results[1]
    assert any(size > 0 for size in sizes)  # blocks that read retained rows


def test_the_knob_names_the_backends():
    assert set(AttentionChoice.__args__) == {"auto", *BACKENDS}


def test_a_wrong_backend_is_caught(monkeypatch):
    """A backend that lets a node see its siblings changes the tokens: the equality above can fail."""
    sound = BACKENDS["reference"].attend

    def leaky(given: Problem) -> torch.Tensor:
        given.sees.words.fill_(-1)
        return sound(given)

    model, prompt, script = setup("qwen3")
    monkeypatch.setitem(BACKENDS, "reference", Backend("reference", lambda _: None, leaky))
    tokens, _, _ = run(model, prompt, script, "second", attention="reference")
    assert tokens != script[len(prompt) :][:LONG]
