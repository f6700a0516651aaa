"""Which models the fused forward takes, why it declines the others, and that a whole decode is the same either way."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.fused.selection import target_for
from tests.fused.models import DENSE, VARIANTS, rope, variant
from tests.tiny import MIX, SHAPE, ScriptedDrafter, greedy

PROMPT = torch.arange(3, 14)
NEW = 24


def steps(model, drafter, **knobs):
    decoder = SpeculativeDecoder(
        model, drafter, DecodeConfig.of(**{"method": "reanchor" if drafter else "plain", **knobs})
    )
    made = list(decoder.decode(PROMPT, SamplingConfig(max_new_tokens=NEW)))
    return [token for step in made for token in step.tokens], [step.accepted for step in made], decoder


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("method, mode", [("plain", "right"), ("dflash", "second"), ("reanchor", "decoy")])
def test_a_decode_is_the_same_by_either(name, method, mode):
    model = variant(name, torch.float32)
    truth = greedy(model, PROMPT, NEW + 8)
    script = [*PROMPT.tolist(), *truth]
    fused, hf = (
        steps(model, ScriptedDrafter(script, mode), method=method, forward=forward)
        for forward in ("fused", "transformers")
    )
    assert fused[:2] == hf[:2]
    assert fused[0] == truth[:NEW]
    assert [each[2].target.forward_report()["used"] for each in (fused, hf)] == ["fused", "transformers"]


def declined(model, reason):
    target = target_for(model, (0,), DecodeConfig("reanchor"))
    report = target.forward_report()
    assert report["used"] == "transformers" and reason in report["declined"]
    with pytest.raises(ValueError, match="forward 'fused' cannot run .* use 'auto'"):
        target_for(model, (0,), DecodeConfig("reanchor", forward="fused"))


def test_another_architecture():
    shape = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    declined(GraniteForCausalLM(GraniteConfig(**shape)).eval(), "GraniteForCausalLM is none of Llama")


LONGROPE = rope(
    "longrope",
    short_factor=[1.0] * 4,
    long_factor=[2.0] * 4,
    factor=4.0,
    original_max_position_embeddings=64,
)
PARTIAL = rope("linear", factor=2.0, partial_rotary_factor=0.5)


def llama(**more):
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **more)).eval()


def quantised_head():
    model = variant("llama")
    model.lm_head.__class__ = Quantised
    return model


def on_two_devices():
    model = variant("llama")
    model.model.layers[1].to("meta")
    return model


def buffers_elsewhere():
    model = variant("llama")
    model.model.rotary_emb.to("meta")
    return model


def own_epsilon():
    model = variant("llama")
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-3
    return model


def own_attention():
    AttentionInterface.register("mine", ALL_ATTENTION_FUNCTIONS["sdpa"])
    AttentionMaskInterface.register("mine", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    model = variant("llama")
    model.set_attn_implementation("mine")
    return model


def bidirectional():
    config = Gemma3TextConfig(**SHAPE, sliding_window=7, layer_types=MIX, use_bidirectional_attention=True)
    return Gemma3ForCausalLM(config).eval()


def capped_by_sdpa():
    model = variant("gemma2")
    model.config._attn_implementation = "sdpa"
    return model


def with_bias(name):
    model = variant("llama")
    linear = model.model.layers[1].get_submodule(name)
    linear.bias = nn.Parameter(torch.randn(linear.out_features, dtype=torch.float64))
    return model


class Eighths(torch.Tensor):
    """Stands for weights quantised inside a linear layer that stays what it is."""


def of_another_tensor():
    model = variant("llama")
    linear = model.model.layers[1].mlp.up_proj
    linear.weight = nn.Parameter(linear.weight.data.as_subclass(Eighths))
    return model


def shared_by_layers():
    model = variant("llama")
    first, second = (model.model.layers[index].self_attn for index in (0, 1))
    second.k_proj.weight = first.k_proj.weight
    return model


def shared_within_a_layer():
    model = variant("llama")
    mlp = model.model.layers[1].mlp
    mlp.up_proj.weight = mlp.gate_proj.weight
    return model


REFUSED = {
    "dynamic": (
        lambda: llama(rope_parameters=rope("dynamic", factor=2.0)),
        "(dynamic) change with the length",
    ),
    "longrope": (lambda: llama(rope_parameters=LONGROPE), "(longrope) change with the length"),
    "partial rotary": (lambda: llama(rope_parameters=PARTIAL), "turns 4 of 8 dimensions"),
    "bidirectional": (bidirectional, "its attention is bidirectional"),
    "head": (quantised_head, "its output head is a Quantised"),
    "devices": (on_two_devices, "its weights lie on cpu, meta"),
    "buffers elsewhere": (buffers_elsewhere, "its weights lie on cpu, meta"),
    "no device": (lambda: variant("llama").to("meta"), "its weights lie on meta"),
    "epsilon": (own_epsilon, "a norm has an epsilon that is not its config's"),
    "attention": (own_attention, "its attention is 'mine', which is not transformers' own"),
    "soft cap": (capped_by_sdpa, "sdpa leaves the soft cap of the scores out"),
    "another tensor": (of_another_tensor, "its weights are of Eighths, not plain tensors"),
    "shared by layers": (shared_by_layers, "its layers share parameters"),
    "shared within a layer": (shared_within_a_layer, "its layers share parameters"),
    **{
        name: (partial(with_bias, name), f"layer 1 has biases on some of {group}")
        for name, group in [
            ("self_attn.q_proj", "self_attn.q_proj, self_attn.k_proj, self_attn.v_proj"),
            ("self_attn.v_proj", "self_attn.q_proj, self_attn.k_proj, self_attn.v_proj"),
            ("mlp.up_proj", "mlp.gate_proj, mlp.up_proj"),
        ]
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    make, reason = REFUSED[name]
    declined(make(), reason)


def test_biases_on_all_that_is_fused_or_on_what_is_not():
    model = variant("llama", torch.float32)
    for layer in model.model.layers:
        for linear in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.self_attn.o_proj):
            linear.bias = nn.Parameter(torch.randn(linear.out_features))
    tokens, _, decoder = steps(model, None)
    assert tokens == greedy(model, PROMPT, NEW) and decoder.target.forward_name == "fused"


@pytest.mark.parametrize(
    "make", [partial(with_bias, "self_attn.v_proj"), of_another_tensor, shared_by_layers]
)
def test_what_is_declined_decodes_all_the_same(make):
    model = make().float()
    tokens, _, decoder = steps(model, None)
    assert tokens == greedy(model, PROMPT, NEW) and decoder.target.forward_name == "transformers"


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
    assert target_for(model, (0,), DecodeConfig("reanchor")).forward_report() == {
        "used": "fused",
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


def test_autocast():
    """Products in half precision are what was asked for, and what transformers' forward computes; afterwards fused."""
    model, prompt = variant("llama", torch.float32), PROMPT.tolist()
    decoder = SpeculativeDecoder(model, None, DecodeConfig("plain"))
    with torch.autocast("cpu", torch.bfloat16):
        tokens = [token for step in decoder.decode(prompt, SamplingConfig(8)) for token in step.tokens]
        assert "autocast" in decoder.target.forward_report()["declined"]
        assert tokens == greedy(model, torch.tensor(prompt), 8)
    decoder = SpeculativeDecoder(model, None, DecodeConfig("plain"))
    assert decoder.target.forward_report()["used"] == "fused"


def test_mixed_precision_training_and_activations():
    model = variant("llama", torch.bfloat16)
    model.model.layers[0].input_layernorm.float()
    declined(model, "torch.bfloat16, torch.float32")
    declined(variant("llama").train(), "training mode")
    declined(LlamaForCausalLM(LlamaConfig(**SHAPE, hidden_act="relu")).eval(), "'relu'")


def test_a_stack_by_another_name():
    with pytest.raises(ValueError, match="forward must be one of auto, transformers, fused"):
        DecodeConfig("reanchor", forward="fast")
