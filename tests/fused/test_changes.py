"""What somebody did to a model is never passed by, whether it was done before the decoder was made or after."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from tests.fused.models import VARIANTS, variant
from tests.tiny import ScriptedDrafter, greedy, tiny_target

PROMPT, NEW = torch.tensor([3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9]), 24


class Adapted(nn.Module):
    """A linear layer wrapped as an adapter wraps it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)
        nn.init.normal_(self.up.weight)

    def forward(self, rows):
        return self.base(rows) + self.up(self.down(rows))


class OtherNorm(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight = norm.weight

    def forward(self, rows):
        return rows * self.weight


def adapt(model):
    torch.manual_seed(0)
    attention = model.model.layers[1].self_attn
    attention.q_proj = Adapted(attention.q_proj)


def hook_perceptron(model):
    model.model.layers[1].mlp.register_forward_hook(lambda _module, _args, output: output * 2)


def hook_head(model):
    model.lm_head.register_forward_hook(lambda _module, _args, output: -output)


def replace_head(model):
    torch.manual_seed(0)
    model.set_output_embeddings(nn.Linear(32, 64, bias=False))


def replace_embedding(model):
    torch.manual_seed(0)
    model.set_input_embeddings(nn.Embedding(64, 32))


def replace_weight(model):
    torch.manual_seed(0)
    model.model.layers[1].mlp.up_proj.weight = nn.Parameter(torch.randn(48, 32))


def swap_layers(model):
    layers = model.model.layers
    layers[0], layers[1] = layers[1], layers[0]


def patch_forward(model):
    attention = model.model.layers[0].self_attn
    own = attention.forward
    attention.forward = lambda *args, **keywords: (own(*args, **keywords)[0] * 2, None)


def replace_norm(model):
    layer = model.model.layers[0]
    layer.input_layernorm = OtherNorm(layer.input_layernorm)


def derive_perceptron(model):
    perceptron = model.model.layers[0].mlp

    class Tripled(type(perceptron)):
        def forward(self, rows):
            return 3 * super().forward(rows)

    perceptron.__class__ = Tripled


def replace_activation(model):
    model.model.layers[0].mlp.act_fn = nn.ReLU()


def change_epsilon(model):
    model.model.layers[0].input_layernorm.variance_epsilon = 3.0


def change_scale(model):
    model.model.layers[0].self_attn.scaling = 2.0


def own_attention(model):
    def doubled(*args, **keywords):
        output, weights = ALL_ATTENTION_FUNCTIONS["sdpa"](*args, **keywords)
        return output * 2, weights

    AttentionInterface.register("doubled", doubled)
    AttentionMaskInterface.register("doubled", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    model.set_attn_implementation("doubled")


def edit_frequencies(model):
    model.model.rotary_emb.inv_freq.mul_(0.5)


def edit_frequencies_data(model):
    model.model.rotary_emb.inv_freq.data.mul_(0.5)


def replace_frequencies(model):
    rotary = model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq * 0.5


def scale_rotary(model):
    model.model.rotary_emb.attention_scaling = 1.7


def hook_rotary(model):
    def doubled(_module, _args, output):
        return tuple(2 * each for each in output)

    model.model.rotary_emb.register_forward_hook(doubled)


def hook_embedding(model):
    model.model.embed_tokens.register_forward_hook(lambda _module, _args, output: output.roll(1, -1))


def replace_embedding_data(model):
    torch.manual_seed(0)
    model.model.embed_tokens.weight.data = torch.randn(64, 32)


def of_class(part: str) -> Callable[[PreTrainedModel], None]:
    """Replaces a forward where all modules of a class have it."""

    def change(model):
        kind = type(model.get_submodule(part))
        own = kind.forward

        @functools.wraps(own)  # what it is called and where it says it is from are the old one's
        def forward(*args, **keywords):
            output = own(*args, **keywords)
            return (2 * output[0], *output[1:]) if isinstance(output, tuple) else 2 * output

        kind.forward = forward

    change.__name__ = f"class of {part}"
    return change


CHANGES: list[Callable[[PreTrainedModel], None]] = [
    adapt,
    hook_perceptron,
    hook_head,
    replace_head,
    replace_embedding,
    replace_weight,
    swap_layers,
    patch_forward,
    replace_norm,
    derive_perceptron,
    replace_activation,
    change_epsilon,
    change_scale,
    own_attention,
    edit_frequencies,
    edit_frequencies_data,
    replace_frequencies,
    scale_rotary,
    hook_rotary,
    hook_embedding,
    replace_embedding_data,
    of_class("model.layers.0"),
    of_class("model.layers.0.self_attn"),
    of_class("model.layers.0.mlp"),
    of_class("model.norm"),
    of_class("model.rotary_emb"),
    of_class("lm_head"),
]


def answers(decoder: SpeculativeDecoder) -> list[int]:
    return [t for step in decoder.decode(PROMPT, SamplingConfig(max_new_tokens=NEW)) for t in step.tokens]


def drop_a_layer(model):
    model.model.layers = model.model.layers[:2]
    model.config.num_hidden_layers = 2


@pytest.mark.parametrize("forward", ["auto", "transformers"])
@pytest.mark.parametrize("when", ["before", "after", "between"])
@pytest.mark.parametrize("change", [*CHANGES, drop_a_layer], ids=lambda change: change.__name__)
def test_a_changed_model_is_followed(change, when, forward, monkeypatch):
    followed(tiny_target("qwen3"), change, when, forward, monkeypatch)


def followed(model, change, when, forward, monkeypatch):
    for kind in {type(each) for each in model.modules() if "forward" in vars(type(each))}:
        monkeypatch.setattr(kind, "forward", kind.forward)  # put back afterwards
    old = greedy(model, PROMPT, NEW)
    drafter = ScriptedDrafter(PROMPT.tolist() + old, "second")
    if when == "before":
        change(model)
    decoder = SpeculativeDecoder(model, drafter, DecodeConfig("reanchor", forward=forward))
    if when == "between":
        assert answers(decoder) == old
    if when != "before":
        change(model)
    assert answers(decoder) == greedy(model, PROMPT, NEW) != old


def replace_factor(model):
    model.model.layers[1].layer_scalar = torch.full((1,), -1.5)


def edit_factor(model):
    model.model.layers[1].layer_scalar.fill_(-1.5)


def edit_frequencies_of_a_kind(model):
    model.model.rotary_emb.sliding_attention_inv_freq.fill_(0.5)


def scale_rotary_of_a_kind(model):
    model.model.rotary_emb.full_attention_attention_scaling = 1.7


@pytest.mark.parametrize("when", ["before", "after", "between"])
@pytest.mark.parametrize(
    "name, change",
    [
        ("gemma4", replace_factor),
        ("gemma4", edit_factor),
        ("gemma3", edit_frequencies_of_a_kind),
        ("gemma3", scale_rotary_of_a_kind),
    ],
)
def test_a_changed_gemma_is_followed(name, change, when, monkeypatch):
    followed(variant(name, torch.float32), change, when, "auto", monkeypatch)


def test_the_lean_stack_by_name_refuses_a_model_hooked_since():
    model = tiny_target("qwen3")
    decoder = SpeculativeDecoder(model, None, DecodeConfig("plain", forward="fused"))
    hook_perceptron(model)
    with pytest.raises(ValueError, match="forward 'fused' cannot run .*hook"):
        decoder.decode(PROMPT)


def test_a_hook_on_all_modules():
    model = tiny_target("qwen3")
    decoder = SpeculativeDecoder(model)

    def doubled(module, _args, output):
        return output * 2 if type(module).__name__ == "Qwen3MLP" else None

    handle = register_module_forward_hook(doubled)
    try:
        assert answers(decoder) == greedy(model, PROMPT, NEW)
    finally:
        handle.remove()


def test_a_model_made_in_inference_mode():
    with torch.inference_mode():
        model = tiny_target("qwen3")
        expected = greedy(model, PROMPT, NEW)
        decoder = SpeculativeDecoder(model)
        assert answers(decoder) == expected
    assert answers(decoder) == expected and decoder.target.forward_name == "transformers"


@pytest.mark.parametrize("name", VARIANTS)
def test_an_unchanged_model_keeps_its_target_and_weights(name):
    decoder = SpeculativeDecoder(variant(name, torch.float32))
    first, weights = decoder.target, decoder.target.weights
    answers(decoder)
    answers(decoder)
    assert decoder.target is first and first.forward_name == "fused" and first.weights is weights
