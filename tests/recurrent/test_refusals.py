"""What is not a recurrent layer that we know is refused by its name, before anything runs."""

from __future__ import annotations

import random

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from reanchor.recurrent.patched_layers import KNOWN, LAYERS
from reanchor.target import Target, refuse_unsupported
from tests.test_target import random_tree
from tests.tiny import tiny_target

from .models import FAMILIES, tiny_hybrid

# The family's model type and the layer that is named.
UNKNOWN = {
    "kimi_linear": "KimiLinearDeltaAttention",
    "qwen4_exp_text": "Qwen4ExpTextGatedDeltaNet",
    "bailing_hybrid": "BailingHybridDeltaAttention",
    "jamba": "JambaMambaMixer",
    "zamba2": "Zamba2MambaMixer",
    "mamba": "MambaMixer",
    "falcon_mamba": "FalconMambaMixer",
    "minimax": "linear_attention",
    "recurrent_gemma": "RecurrentGemmaForCausalLM.*linear_attention",
}


@pytest.mark.parametrize("family", UNKNOWN)
def test_unknown_recurrences_are_refused_by_name(family):
    """As `load_target` asks, of a model without weights."""
    options = {"layer_types": ["linear_attention"] * 2, "num_hidden_layers": 2} if "qwen4" in family else {}
    config = AutoConfig.for_model(family, **options)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=f"{UNKNOWN[family]}.*use plain HF generate"):
        refuse_unsupported(model)


def test_known_ones_are_not():
    for family in FAMILIES:
        refuse_unsupported(tiny_hybrid(family))
    assert all(family.replace("_moe", "").split("_")[0] in KNOWN for family in FAMILIES)
    modules = {type(module).__name__ for family in FAMILIES for module in tiny_hybrid(family).modules()}
    assert set(LAYERS) <= modules  # a layer that no test model has would be an untested claim


def test_models_of_attention_alone_are_as_before():
    assert Target(tiny_target("qwen3")).recurrent is None


def test_a_version_with_other_functions_is_refused(monkeypatch):
    model = tiny_hybrid("lfm2")
    monkeypatch.setattr("reanchor.recurrent.patched_layers.CONVOLVE", "convolve_in_another_way")
    with pytest.raises(
        ValueError, match=r"layers\.0\.conv is a Lfm2ShortConv: this version.*convolve_in_another"
    ):
        Target(model)


def test_a_class_of_somebody_else_by_the_same_name_is_refused():
    model = tiny_hybrid("lfm2")
    layer = model.model.layers[0].conv
    layer.__class__ = type("Lfm2ShortConv", (type(layer),), {"__module__": "somebody.elses"})
    with pytest.raises(ValueError, match="its recurrence is not known"):
        Target(model)


def test_qwen_behind_a_vision_wrapper():
    """Its text alone: the wrapper takes positions of text as they are."""
    text = tiny_hybrid("qwen3_5")
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = transformers.Qwen3_5Config(text_config=text.config.to_dict(), vision_config=vision)
    whole = transformers.Qwen3_5ForConditionalGeneration(config).eval().requires_grad_(False)
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.lm_head.load_state_dict(text.lm_head.state_dict())
    outputs = []
    for model in (text, whole):
        target = Target(model)
        cache = target.new_cache()
        target.prefill(torch.arange(3, 9), cache)
        outputs.append(target.verify(random_tree(random.Random(1), 9), cache).logits)
    torch.testing.assert_close(outputs[0], outputs[1])
