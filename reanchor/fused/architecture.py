"""Architecture of a decoder, as a small frozen value read from an HF model, or the reason it cannot be described.

A description is only made of what is recognised whole: a model with one parameter or hook more than its family
has is HF's to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from reanchor.attention.huggingface import foreign_attention, ignores_soft_cap
from reanchor.layer import LayerShape

ACTIVATIONS = ("silu", "gelu_pytorch_tanh", "gelu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Rotary frequencies that do not change with the length: their tables can be made ahead.
STATIC_ROTARY = ("default", "linear", "llama3", "yarn", "proportional")
PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
PERCEPTRON = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
FUSED = (PROJECTIONS[:3], PERCEPTRON[:2])  # one product each
# Output recording of transformers hangs on its layers from the first time it is asked for, idle otherwise.
IDLE_HOOKS = "transformers.utils.output_capturing"


class Unsupported(ValueError):
    """Why a model stays with HF's forward; the message is the reason."""


@dataclass(frozen=True)
class Family:
    """What tells one architecture's layers from another's."""

    centred: bool = False  # norm weights are stored less one
    sandwich: bool = False  # norms behind attention and perceptron as well
    head_norms: bool = False  # queries and keys are normalised head by head
    softcap: bool = False  # attention scores are capped
    window_everywhere: bool = False  # every layer slides, whatever its type
    late: bool = False  # norms are multiplied before they are rounded
    value_norms: bool = False  # values are normalised head by head, without a weight
    scaled: bool = False  # a layer's output has a factor

    def norms(self) -> tuple[str, ...]:
        """A layer's norms over the hidden size: before and behind attention, before and behind the perceptron."""
        if not self.sandwich:
            return ("input_layernorm", "post_attention_layernorm")
        behind = ("post_attention_layernorm", "post_feedforward_layernorm")
        return ("input_layernorm", behind[0], "pre_feedforward_layernorm", behind[1])


FAMILIES = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(window_everywhere=True),
    "Qwen2ForCausalLM": Family(),
    "Qwen3ForCausalLM": Family(head_norms=True),
    "Gemma2ForCausalLM": Family(centred=True, late=True, sandwich=True, softcap=True),
    "Gemma3ForCausalLM": Family(centred=True, late=True, sandwich=True, head_norms=True),
    "Gemma4ForCausalLM": Family(late=True, sandwich=True, head_norms=True, value_norms=True, scaled=True),
}


@dataclass(frozen=True)
class Architecture:
    family: Family
    layers: tuple[LayerShape, ...]
    hidden: int
    eps: float  # of the last norm
    softcap: float | None  # of the logits
    rotary: tuple[tuple[str, float], ...]  # numbers that its rotary module computes with


def read_architecture(model: PreTrainedModel) -> Architecture:
    """The description of a model; raises Undescribed with the reason."""
    name = type(model).__name__
    family = FAMILIES.get(name)
    if family is None or not type(model).__module__.startswith("transformers.models."):
        raise Unsupported(
            f"{name} is none of {', '.join(each.removesuffix('ForCausalLM') for each in FAMILIES)}"
        )
    config = model.config
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    if activation not in ACTIVATIONS:
        raise Unsupported(f"the activation {activation!r} is none of {', '.join(ACTIVATIONS)}")
    check_modules(model, family)
    check_computation(model, family, type(ACT2FN[activation]))
    check_rotary(config)
    foreign = foreign_attention(model)
    if foreign is not None:
        raise Unsupported(f"its attention is {foreign!r}, which is not transformers' own")
    if family.softcap and ignores_soft_cap(model):
        raise Unsupported(
            "transformers' sdpa leaves the soft cap of the scores out; load it with eager attention"
        )
    if getattr(config, "use_bidirectional_attention", None) not in (None, False, "vision"):
        raise Unsupported("its attention is bidirectional")
    layers = model.get_decoder().layers
    shapes = tuple(layer_shape(layer.self_attn, config, family, activation) for layer in layers)
    cap = getattr(config, "final_logit_softcapping", None)
    rotary = sorted(vars(model.get_decoder().rotary_emb).items())
    numbers = tuple((key, value) for key, value in rotary if isinstance(value, (int, float)))
    return Architecture(family, shapes, config.hidden_size, config.rms_norm_eps, cap, numbers)


def layer_shape(attention: Any, config: Any, family: Family, activation: str) -> LayerShape:
    size = attention.head_dim
    types = getattr(config, "layer_types", None) or ()
    window = config.sliding_window if family.window_everywhere else getattr(attention, "sliding_window", None)
    return LayerShape(
        heads=attention.q_proj.out_features // size,
        kv_heads=attention.k_proj.out_features // size,
        head_dim=size,
        scale=attention.scaling,
        eps=config.rms_norm_eps,
        activation=activation,
        window=window,
        softcap=attention.attn_logit_softcapping if family.softcap else None,
        kind=types[attention.layer_idx] if types else "full_attention",
        value_norm=family.value_norms,
        keys_are_values=attention.v_proj is None,
    )


def check_rotary(config: Any) -> None:
    parameters = config.rope_parameters
    nested = [each for each in parameters.values() if isinstance(each, dict)]
    for each in nested or [parameters]:
        if each["rope_type"] not in STATIC_ROTARY:
            raise Unsupported(f"its rotary frequencies ({each['rope_type']}) change with the length")


def check_modules(model: PreTrainedModel, family: Family) -> None:
    """Raise Undescribed unless the modules are the family's own, with plain weights on one device."""
    if model.training:
        raise Unsupported("it is in training mode")
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    for index, layer in enumerate(decoder.layers):
        check_layer(layer, index, family)
    if type(head) is not nn.Linear:
        raise Unsupported(f"its output head is a {type(head).__name__}")
    for name, module in is_hooked(model):
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if any(getattr(hook, "__module__", "") != IDLE_HOOKS for hook in hooks) or "forward" in vars(module):
            raise Unsupported(f"{name} has a hook or a forward of its own")
        if is_patched(type(module)):
            raise Unsupported(
                f"the forward of {type(module).__name__} is neither transformers' own nor torch's"
            )
    kind = model.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        raise Unsupported("autocast is on, which the fused forward does not heed")
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise Unsupported("there is a hook on all modules")
    check_tensors(model)


def check_tensors(model: PreTrainedModel) -> None:
    """Raise Undescribed unless the weights are plain tensors of one dtype, on one device, and each layer's its own."""
    parameters, buffers = list(model.parameters()), list(model.buffers())
    for each in parameters:
        if type(each) is not nn.Parameter or type(each.data) is not torch.Tensor:
            raise Unsupported(f"its weights are of {type(each.data).__name__}, not plain tensors")
    of_layers = [id(each) for _, each in model.get_decoder().layers.named_parameters(remove_duplicate=False)]
    if len(set(of_layers)) < len(of_layers):
        raise Unsupported("its layers share parameters, which cannot lie beside two others at once")
    if any(each.is_inference() for each in parameters):
        raise Unsupported("its weights were made in inference mode, where a change of them goes unseen")
    dtypes, places = {each.dtype for each in parameters}, {each.device for each in (*parameters, *buffers)}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise Unsupported(f"its weights are in {', '.join(sorted(map(str, dtypes)))}")
    if len(places) > 1 or next(iter(places)).type == "meta":
        raise Unsupported(f"its weights lie on {', '.join(sorted(map(str, places)))}")


def check_layer(layer: Any, index: int, family: Family) -> None:
    tied = family.value_norms and getattr(layer.self_attn, "v_proj", layer) is None
    optional = "self_attn.v_proj" if tied else None
    linears = tuple(name for name in (*PROJECTIONS, *PERCEPTRON) if name != optional)
    norms = (*family.norms(), *(HEAD_NORMS if family.head_norms else ()))
    known = {f"{name}.{part}" for name in (*linears, *norms) for part in ("weight", "bias")}
    found = {name for name, _ in layer.named_parameters(remove_duplicate=False)}
    if found - known or not {f"{name}.weight" for name in (*linears, *norms)} <= found:
        raise Unsupported(
            f"layer {index} has other parameters: {', '.join(sorted(found - known)) or 'some are missing'}"
        )
    for name in linears:
        if type(layer.get_submodule(name)) is not nn.Linear:
            raise Unsupported(f"layer {index}'s {name} is a {type(layer.get_submodule(name)).__name__}")
    for group in FUSED:
        biased = [f"{name}.bias" in found for name in group if name != optional]
        if any(biased) and not all(biased):
            raise Unsupported(f"layer {index} has biases on some of {', '.join(group)} and not on others")


def check_computation(model: PreTrainedModel, family: Family, activation: type) -> None:
    """Raise Undescribed unless what is computed between the weights is the family's, too."""
    decoder, home, eps = model.get_decoder(), type(model).__module__, model.config.rms_norm_eps
    names = (*family.norms(), *(HEAD_NORMS if family.head_norms else ()))
    norms: list[Any] = [decoder.norm]
    own: list[nn.Module] = [decoder, decoder.norm, decoder.rotary_emb]
    for layer in decoder.layers:
        norms += (layer.get_submodule(name) for name in names)
        own += (layer, layer.self_attn, layer.mlp)
        if type(layer.mlp.act_fn) is not activation:
            raise Unsupported(f"a layer's activation is a {type(layer.mlp.act_fn).__name__}")
    for module in (*own, *norms):
        if type(module).__module__ != home:
            raise Unsupported(f"its {type(module).__name__} is not of {home}")
    for norm in norms:
        if getattr(norm, "variance_epsilon", getattr(norm, "eps", None)) != eps:
            raise Unsupported("a norm has an epsilon that is not its config's")


def is_hooked(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """Modules that are not called any more, or not in every pass, and so must not do anything beyond their own."""
    decoder = model.get_decoder()
    yield type(model).__name__, model
    yield "the decoder", decoder
    ends = (model.get_input_embeddings(), decoder.rotary_emb, decoder.norm, model.get_output_embeddings())
    for part in (*ends, *decoder.layers):
        for name, module in part.named_modules():
            yield f"{type(part).__name__} {name}".strip(), module


def is_patched(kind: type[nn.Module]) -> bool:
    """Whether a class's forward, or anything wrapped around it, was written elsewhere than in transformers or torch.

    Globals tell: a wrapper takes over the name and the module of what it wraps.
    """
    function: Any = kind.forward
    home = ""
    while function is not None:
        home = getattr(function, "__globals__", {}).get("__name__", "")
        if home.partition(".")[0] not in ("transformers", "torch"):
            return True
        function = getattr(function, "__wrapped__", None)
    return home != kind.__module__
