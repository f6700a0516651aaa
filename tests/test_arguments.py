"""Every argument of generate is used as HF uses it, or refused by its name."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig

from reanchor import ReAnchorGenerator
from tests.tiny import ScriptedDrafter, greedy, tiny_target

PROMPT = torch.tensor([3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9])
NEW = 12


@pytest.fixture(scope="module")
def model():
    return tiny_target("qwen3")


@pytest.fixture
def generator(model):
    return ReAnchorGenerator(model, ScriptedDrafter(PROMPT.tolist() + greedy(model, PROMPT, NEW), "second"))


@pytest.mark.parametrize(
    "options",
    [
        {"pixel_values": torch.zeros(1, 3, 4, 4)},
        {"image_grid_thw": torch.ones(1, 3)},
        {"position_ids": torch.arange(11)[None] + 5},
        {"token_type_ids": torch.ones(1, 11, dtype=torch.long)},
        {"labels": PROMPT[None]},
        {"logits_to_keep": 3},
        {"output_router_logits": True},
        {"synced_gpus": True},
        {"trust_remote_code": True},
        {"cache_implementation": "offloaded"},
        {"cache_implementation": "static"},
        {"cache_config": {"backend": "quanto"}},
        {"max_cache_len": 99},
        {"prefill_chunk_size": 4},
        {"token_healing": True},
        {"use_mtp": True},
        {"speculation_type": "dflash"},
        {"assistant_early_exit": 2},
        {"num_assistant_tokens": 4},
        {"cache_params": object()},
    ],
    ids=lambda options: " ".join(f"{name}" for name in options),
)
def test_an_argument_that_is_not_used_is_refused_by_name(generator, options):
    with pytest.raises(
        ValueError, match=f"{next(iter(options))}.* (is|are) not supported|which is not supported"
    ):
        generator.generate(PROMPT[None], max_new_tokens=4, **options)


@pytest.mark.parametrize(
    "name, value", [("cache_implementation", "offloaded"), ("num_beams", 3), ("use_mtp", True)]
)
def test_a_callers_config_is_a_wish_too(generator, name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} is not supported"):
        generator.generate(
            PROMPT[None], generation_config=GenerationConfig(max_new_tokens=4, **{name: value})
        )


def test_what_says_nothing_new_is_taken(model, generator):
    ours = generator.generate(
        PROMPT[None],
        max_new_tokens=NEW,
        position_ids=torch.arange(11)[None],
        pixel_values=None,
        cache_implementation="dynamic",
        disable_compile=True,
        synced_gpus=False,
    )
    assert ours[0, 11:].tolist() == greedy(model, PROMPT, NEW)


def test_positions_of_a_padded_prompt(model, generator):
    mask = torch.tensor([[0, 0] + [1] * 11])
    padded = torch.cat([torch.zeros(2, dtype=torch.long), PROMPT])[None]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    ours = generator.generate(padded, attention_mask=mask, position_ids=positions, max_new_tokens=NEW)
    assert ours[0, 13:].tolist() == greedy(model, PROMPT, NEW)


def test_a_tokenizers_output_is_no_prompt_by_itself(generator):
    with pytest.raises(ValueError, match=r"inputs must be a tensor .* got dict; .*generate\(\*\*encoded\)"):
        generator.generate({"input_ids": PROMPT[None]})


@pytest.mark.parametrize(
    "left",
    [
        {"num_beams": 4},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"penalty_alpha": 0.6},
        {"output_attentions": True},
        {"guidance_scale": 2.0},
    ],
    ids=str,
)
def test_what_a_checkpoint_has_left_is_overridden_with_a_note(left):
    model = tiny_target("qwen3")
    expected = greedy(model, PROMPT, NEW)
    for name, value in left.items():
        setattr(model.generation_config, name, value)
    generator = ReAnchorGenerator(model, ScriptedDrafter(PROMPT.tolist() + expected, "second"))
    with pytest.warns(UserWarning, match=f"{next(iter(left))}=.* which is not followed"):
        ours = generator.generate(PROMPT[None], max_new_tokens=NEW, do_sample=False)
    assert ours[0, len(PROMPT) :].tolist() == expected
