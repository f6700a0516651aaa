"""A model that is changed, moved or offloaded, and inference mode around some calls: the answer stays the target's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from accelerate import cpu_offload, disk_offload

from reanchor import DecodeConfig, ReAnchorGenerator
from reanchor.drafters.load import load_drafter
from tests.drafters.writer import Facts, dflash, speculators, tiny_target
from tests.tiny import greedy

PROMPT = torch.tensor([3, 14, 15, 9, 2, 6, 5, 3])
NEW = 10


@pytest.fixture(params=["reanchor", "auto"])
def config(request):
    return DecodeConfig(request.param, max_nodes=12 if request.param == "auto" else None)


@pytest.fixture(params=["z-lab", "speculators"])
def folder(request, tmp_path):
    written = dflash() if request.param == "z-lab" else speculators("dflash", Facts(), {})
    return written.save(tmp_path)


def target():
    model = tiny_target().float()
    model.generation_config.eos_token_id = None
    return model


def answer(generator, prompt=PROMPT):
    return generator.generate(prompt[None], max_new_tokens=NEW, do_sample=False)[0, len(prompt) :].tolist()


def test_inference_mode_around_some_calls(config, folder):
    expected = greedy(target(), PROMPT, NEW)
    for loading in (True, False):
        for calls in ((True, False, True), (False, True, False)):
            with torch.inference_mode(loading):
                model = target()
                generator = ReAnchorGenerator(model, load_drafter(folder, model), config=config)
            for within in calls:
                with torch.inference_mode(within):
                    assert answer(generator) == expected


def test_a_vocabulary_that_grew(config, folder):
    model = target()
    generator = ReAnchorGenerator(model, load_drafter(folder, model), config=config)
    answer(generator)
    model.resize_token_embeddings(104)
    prompt = torch.tensor([3, 101, 5])
    assert answer(generator) == greedy(model, PROMPT, NEW)
    assert answer(generator, prompt) == greedy(model, prompt, NEW)


def test_another_precision_since(config, folder):
    model = target()
    generator = ReAnchorGenerator(model, load_drafter(folder, model), config=config)
    answer(generator)
    model.to(torch.float64)
    assert answer(generator) == greedy(model, PROMPT, NEW)


@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_offloaded_targets(config, folder, place, tmp_path):
    model = target()
    expected = greedy(model, PROMPT, NEW)
    model = (
        cpu_offload(model, execution_device="cpu")
        if place == "cpu"
        else disk_offload(model, tmp_path / "disk", execution_device="cpu")
    )
    assert model.device.type == "meta"
    generator = ReAnchorGenerator(model, load_drafter(folder, model), config=config)
    assert answer(generator) == expected


@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "PREFIX_TUNING"])
def test_adapters_that_add_rows_are_refused(kind):
    model = target()
    model.peft_config = {"default": SimpleNamespace(is_prompt_learning=True, peft_type=kind)}
    with pytest.raises(ValueError, match=f"PEFT's {kind}, which adds rows .* use LoRA"):
        ReAnchorGenerator(model)
    model.peft_config = {"default": SimpleNamespace(is_prompt_learning=False, peft_type="LORA")}
    assert answer(ReAnchorGenerator(model)) == greedy(model, PROMPT, NEW)
