"""One warning, and only when next to nothing is accepted."""

from __future__ import annotations

import warnings

import pytest
import torch

from reanchor import DecodeConfig, ReAnchorGenerator
from tests.tiny import ScriptedDrafter, greedy, tiny_target

PROMPT = torch.tensor([3, 14, 15, 9, 2, 6])


@pytest.fixture(scope="module")
def script() -> tuple[object, list[int]]:
    model = tiny_target("llama")
    return model, PROMPT.tolist() + greedy(model, PROMPT, 80)


@pytest.mark.parametrize("method", ["reanchor", "dflash"])
def test_a_wrong_drafter_is_doubted_once(script, method) -> None:
    model, text = script
    generator = ReAnchorGenerator(model, ScriptedDrafter(text, "wrong"), config=DecodeConfig(method))
    with pytest.warns(
        UserWarning, match="0 of 128 drafts.*usual causes: the drafter was trained for another"
    ):
        generator.generate(PROMPT[None], max_new_tokens=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        generator.generate(PROMPT[None], max_new_tokens=60)


@pytest.mark.parametrize(("mode", "new"), [("wrong", 30), ("second", 70), ("right", 70)])
def test_nothing_is_said_too_early_or_of_a_good_drafter(script, mode, new) -> None:
    model, text = script
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ReAnchorGenerator(model, ScriptedDrafter(text, mode)).generate(PROMPT[None], max_new_tokens=new)


def test_plain_decoding_is_never_doubted(script) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ReAnchorGenerator(script[0], None).generate(PROMPT[None], max_new_tokens=50)
