"""Nothing of one call is left in the next."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

import pytest
import torch

from reanchor import DecodeConfig, ReAnchorGenerator, SamplingConfig, SpeculativeDecoder
from reanchor.drafters.base import NoDrafter
from tests.tiny import ScriptedDrafter, greedy, tiny_target

PROMPT = torch.tensor([3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9])
OTHER = torch.tensor([1, 2, 60, 33])
NEW = 16


@pytest.fixture
def model():
    return tiny_target("gemma3")


def generator(model, prompt):
    drafter = ScriptedDrafter(prompt.tolist() + greedy(model, prompt, NEW), "second")
    return ReAnchorGenerator(model, drafter, config=DecodeConfig("reanchor"))


def test_two_calls_in_a_row(model):
    ours = generator(model, PROMPT)
    for prompt in (PROMPT, OTHER, PROMPT):
        expected = model.generate(prompt[None], max_new_tokens=NEW)
        assert torch.equal(ours.generate(prompt[None], max_new_tokens=NEW), expected)
    stats = [
        ours.generate(PROMPT[None], max_new_tokens=NEW, return_dict_in_generate=True).stats for _ in range(2)
    ]
    assert [each.tokens for each in stats[0].rounds] == [each.tokens for each in stats[1].rounds]


class Breaks:
    """A streamer that raises at its third put."""

    def __init__(self, error):
        self.error, self.puts = error, 0

    def put(self, value):
        self.puts += 1
        if self.puts == 3:
            raise self.error

    def end(self):
        pass


@pytest.mark.parametrize(
    "error", [RuntimeError("streamer broke"), KeyboardInterrupt()], ids=["error", "interrupt"]
)
def test_a_call_after_an_exception(model, error):
    ours = generator(model, PROMPT)
    hooks = [len(layer._forward_hooks) for layer in model.model.layers]
    with pytest.raises(type(error)):
        ours.generate(PROMPT[None], max_new_tokens=NEW, streamer=Breaks(error))
    assert hooks == [len(layer._forward_hooks) for layer in model.model.layers]
    assert torch.equal(
        ours.generate(PROMPT[None], max_new_tokens=NEW), model.generate(PROMPT[None], max_new_tokens=NEW)
    )


@pytest.mark.parametrize("breaks", [False, True])
def test_an_end_before_the_end_gives_back_what_was_drawn_ahead(model, breaks, monkeypatch):
    """After an iterator that is left, or an exception, the global generator is where plain decoding would have it."""

    def left(method: str, least: int) -> tuple[list[int], torch.Tensor]:
        config = DecodeConfig(method, max_nodes=8)
        decoder = SpeculativeDecoder(model, ScriptedDrafter([1] * 99), config)
        torch.manual_seed(1)
        steps, found = decoder.decode(PROMPT, SamplingConfig(NEW, temperature=1.0)), []
        while len(found) < least:
            found += next(steps).tokens
        if breaks:
            with monkeypatch.context() as patch, pytest.raises(TypeError):
                patch.setattr(type(decoder.target), "verify", None)
                next(steps)
        steps.close()
        return found, torch.rand(3)

    tokens, after = left("auto", 4)
    plain, expected = left("plain", len(tokens))
    assert plain == tokens and torch.equal(after, expected)


def test_two_generators_on_one_target_interleaved(model):
    decoders = [
        SpeculativeDecoder(
            model, ScriptedDrafter(PROMPT.tolist() + greedy(model, PROMPT, NEW)), DecodeConfig("dflash")
        ),
        SpeculativeDecoder(model, ScriptedDrafter(OTHER.tolist() + greedy(model, OTHER, NEW), "second")),
    ]
    sampling = SamplingConfig(max_new_tokens=NEW)
    runs = [
        decoder.decode(prompt, sampling) for decoder, prompt in zip(decoders, (PROMPT, OTHER), strict=True)
    ]
    out: list[list[int]] = [[], []]
    while runs[0] is not None or runs[1] is not None:
        for k, run in enumerate(runs):
            step = next(run, None) if run is not None else None
            if step is None:
                runs[k] = None
            else:
                out[k] += step.tokens
    assert out == [greedy(model, PROMPT, NEW), greedy(model, OTHER, NEW)]


@pytest.mark.parametrize("method", ["reanchor", "auto"])
def test_one_decoder_interleaved_with_itself(model, method):
    truth = greedy(model, PROMPT, NEW)
    decoder = SpeculativeDecoder(
        model, ScriptedDrafter(PROMPT.tolist() + truth, "second"), DecodeConfig(method)
    )
    runs = [decoder.decode(PROMPT, SamplingConfig(max_new_tokens=NEW)) for _ in range(2)]
    out: list[list[list[int]]] = [[], []]
    for steps in zip_longest(*runs):
        for k, step in enumerate(steps):
            if step is not None:
                out[k].append(step.tokens)
    assert [sum(each, []) for each in out] == [truth, truth]
    if method == "reanchor":  # what auto gives a round is the clock's business
        assert out[0] == out[1]


def test_the_model_is_left_as_it_was(model):
    settings = (model.config.to_dict(), model.generation_config.to_dict(), model.training)
    generator(model, PROMPT).generate(PROMPT[None], max_new_tokens=NEW)
    assert settings == (model.config.to_dict(), model.generation_config.to_dict(), model.training)


def test_no_drafter_drafts_nothing():
    assert NoDrafter().draft(7, None, (), None).blocks == [[7]]


@pytest.mark.parametrize("forward", ["transformers", "fused"])
@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_threads_take_turns_on_one_target(family, forward):
    model = tiny_target(family)
    truth = greedy(model, PROMPT, NEW)
    wrong = []

    def work() -> None:
        for _ in range(4):
            drafter = ScriptedDrafter(PROMPT.tolist() + truth, "second")
            out = ReAnchorGenerator(
                model, drafter, config=DecodeConfig("reanchor", forward=forward)
            ).generate(PROMPT[None], max_new_tokens=NEW)
            if out[0, len(PROMPT) :].tolist() != truth:
                wrong.append(out)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work) for _ in range(3)]:
            done.result()
    assert not wrong
    assert model.config._attn_implementation == "sdpa"
    assert not any(module._forward_hooks for module in model.modules())
