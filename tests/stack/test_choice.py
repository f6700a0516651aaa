"""Which models the lean stack takes, why it declines the others, and that a whole decode is the same either way."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.stack.choice import target_for
from tests.stack.models import DENSE, VARIANTS, rope, variant
from tests.tiny import SHAPE, ScriptedDrafter, greedy

PROMPT = torch.arange(3, 14)
NEW = 24


def steps(model, drafter, **knobs):
    decoder = SpeculativeDecoder(model, drafter, DecodeConfig(**{"method": "reanchor", **knobs}))
    made = list(decoder.decode(PROMPT, SamplingConfig(max_new_tokens=NEW)))
    return [token for step in made for token in step.tokens], [step.accepted for step in made], decoder


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("method, mode", [("plain", "right"), ("dflash", "second"), ("reanchor", "decoy")])
def test_a_decode_is_the_same_by_either(name, method, mode):
    model = variant(name, torch.float32)
    truth = greedy(model, PROMPT, NEW + 8)
    script = [*PROMPT.tolist(), *truth]
    lean, hf = (
        steps(model, ScriptedDrafter(script, mode), method=method, stack=stack) for stack in ("lean", "hf")
    )
    assert lean[:2] == hf[:2]
    assert lean[0] == truth[:NEW]
    assert [each[2].target.stack_report()["used"] for each in (lean, hf)] == ["lean", "hf"]


def declined(model, reason):
    target = target_for(model, (0,), DecodeConfig("reanchor"))
    report = target.stack_report()
    assert report["used"] == "hf" and reason in report["declined"]
    with pytest.raises(ValueError, match="stack 'lean' cannot run .* use 'auto'"):
        target_for(model, (0,), DecodeConfig("reanchor", stack="lean"))


def test_another_architecture():
    shape = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    declined(GraniteForCausalLM(GraniteConfig(**shape)).eval(), "GraniteForCausalLM is none of Llama")


def test_rotary_frequencies_that_move():
    config = LlamaConfig(**SHAPE, rope_parameters=rope("dynamic", factor=2.0))
    declined(LlamaForCausalLM(config).eval(), "(dynamic) change with the length")


class Quantised(nn.Linear):
    """Stands for every replacement of a linear layer."""


@pytest.mark.parametrize("name", ["self_attn.q_proj", "mlp.down_proj"])
def test_replaced_linears(name):
    model = variant("llama")
    linear = model.model.layers[1].get_submodule(name)
    linear.__class__ = Quantised
    declined(model, f"layer 1's {name} is a Quantised")


def test_hooks_and_own_forwards():
    model = variant("llama")
    handle = model.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    declined(model, "hook")
    handle.remove()
    model.model.layers[2].forward = lambda *args: args
    declined(model, "forward of its own")


def test_hidden_states_asked_for_before_are_no_obstacle():
    model = variant("llama")
    model(PROMPT[None], output_hidden_states=True)
    assert target_for(model, (0,), DecodeConfig("reanchor")).stack_report() == {
        "used": "lean",
        "declined": None,
        "packed": False,
    }


def test_further_parameters():
    model = variant("llama")
    model.model.layers[1].self_attn.gate = nn.Linear(32, 4).double()
    declined(model, "layer 1 has other parameters: self_attn.gate.bias")


def test_gemma_4_with_per_layer_inputs_or_shared_rows():
    inputs = {**DENSE, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64}
    for more, reason in (
        (inputs, "per_layer_input_gate"),
        ({**DENSE, "layer_types": ["full_attention"] * 3, "num_kv_shared_layers": 1}, "some are missing"),
    ):
        declined(Gemma4ForCausalLM(Gemma4TextConfig(**SHAPE, **more, global_head_dim=8)).eval(), reason)


def test_mixed_precision_training_and_activations():
    model = variant("llama", torch.bfloat16)
    model.model.layers[0].input_layernorm.float()
    declined(model, "torch.bfloat16, torch.float32")
    declined(variant("llama").train(), "training mode")
    declined(LlamaForCausalLM(LlamaConfig(**SHAPE, hidden_act="relu")).eval(), "'relu'")


def test_a_stack_by_another_name():
    with pytest.raises(ValueError, match="stack must be one of auto, hf, lean"):
        DecodeConfig("reanchor", stack="fast")
