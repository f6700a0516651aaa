"""The embedded pair, a real model: token identity in float32, and the original DFlash loop as an oracle."""

from __future__ import annotations

import time

import pytest
import torch

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.drafters.load import load_drafter
from reanchor.training.drafter_shape import DrafterShape
from reanchor.training.initialization import init_drafter

NEW = 16
PROMPTS = [
    "A train leaves at noon and travels 60 miles an hour. How far is it at half past two?",
    "Write a Python function that returns the larger of two numbers.",
    "Name three fruits that are red.",
    "Explain in one sentence why the sky is blue.",
    "Translate to French: good morning, my friend.",
    "What is 17 times 6?",
    "Write a short poem about the sea.",
    "List the days of the week.",
]


@pytest.fixture(scope="module")
def prompts(demo_pair) -> list[list[int]]:
    chats = ([{"role": "user", "content": prompt}] for prompt in PROMPTS)
    return [
        demo_pair.tokenizer.apply_chat_template(c, add_generation_prompt=True)["input_ids"] for c in chats
    ]


@pytest.fixture(scope="module")
def plain(demo_pair, prompts) -> list[list[int]]:
    """The target's own greedy answers, by HF generate."""
    settings = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return [
        demo_pair.target.generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist() for ids in prompts
    ]


@pytest.mark.parametrize("verifier_path", ["off", "attach"])
def test_identical_tokens_and_fewer_passes(demo_pair, prompts, plain, verifier_path):
    decoder = SpeculativeDecoder(
        demo_pair.target, demo_pair.drafter, DecodeConfig.of(method="reanchor", verifier_path=verifier_path)
    )
    passes = 0
    for ids, expected in zip(prompts, plain, strict=True):
        steps = list(decoder.decode(ids, SamplingConfig(max_new_tokens=NEW)))
        assert [token for step in steps for token in step.tokens] == expected
        passes += len(steps)
    assert passes < 0.9 * NEW * len(prompts)


def test_a_drafter_that_reads_rejected_states(demo_pair, prompts, plain, tmp_path):
    """It changes no token with them or without, and what it proposes depends on them."""
    init_drafter(tmp_path, "demo", DrafterShape(), demo_pair.target, carryover=True)
    drafter = load_drafter(tmp_path, demo_pair.target)
    trees = {}
    for carryover in (True, False):
        decoder = SpeculativeDecoder(demo_pair.target, drafter, DecodeConfig("reanchor", carryover=carryover))
        for ids, expected in zip(prompts[:4], plain[:4], strict=True):
            steps = list(decoder.decode(ids, SamplingConfig(max_new_tokens=NEW)))
            assert [token for step in steps for token in step.tokens] == expected
            trees.setdefault(carryover, []).append([step.tree.tokens for step in steps[1:]])
    assert trees[True] != trees[False]


def test_dflash_equals_the_original_loop(demo_pair, prompts, tmp_path_factory, monkeypatch):
    """Same tokens and accepted lengths, round by round. The original shrinks its last block, so it is asked for one
    block more than is compared.
    """
    original = pytest.importorskip(
        "dflash.model", reason="the original is not installed: pip install dflash==0.1.0"
    )
    from safetensors.torch import load_file
    from transformers import AutoConfig

    from reanchor.drafters.load import SHIPPED

    monkeypatch.setattr(original, "_cuda_time", time.perf_counter)
    model = original.DFlashDraftModel(AutoConfig.from_pretrained(SHIPPED["demo"])).float().eval()
    model.load_state_dict(load_file(SHIPPED["demo"] / "model.safetensors"))
    decoder = SpeculativeDecoder(demo_pair.target, demo_pair.drafter, DecodeConfig("dflash"))
    more = NEW + demo_pair.drafter.block_size
    for ids in prompts[:4]:
        with torch.no_grad():
            theirs = original.dflash_generate(
                model, demo_pair.target, torch.tensor([ids]), more, None, return_stats=True
            )
        steps = list(decoder.decode(ids, SamplingConfig(max_new_tokens=more)))
        tokens = [token for step in steps for token in step.tokens]
        assert tokens[:NEW] == theirs.output_ids[0, len(ids) : len(ids) + NEW].tolist()
        lengths = [len(step.tokens) for step in steps[1:]]
        compared = next(k for k in range(len(lengths)) if 1 + sum(lengths[: k + 1]) >= NEW)
        assert lengths[:compared] == theirs.acceptance_lengths[:compared]
