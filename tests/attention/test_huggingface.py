"""Models verify trees through the room inside a scope, and are themselves outside of it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention
from transformers.models.llama.modeling_llama import LlamaAttention

from reanchor.attention.huggingface import PatchedAttention, attention_refusal, passed_keywords
from reanchor.attention.problem import Visibility
from reanchor.attention.table import Attention
from reanchor.cache import TreeCache
from tests.attention.problems import random_trie
from tests.tiny import FAMILIES, SHAPE, VOCAB, tiny_target

PROMPT, NODES = 21, 14
# the argument's name before transformers 5.24
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"


def verify(model, prompt, tokens, sees, depths, attention):
    """Logits [N, V] of a tree behind a prompt."""
    cache = TreeCache(model.config)
    cache.reserve(len(prompt))
    model(input_ids=prompt[None], use_cache=True, **{CACHE: cache})
    cache.commit(list(range(len(prompt))))
    cache.reserve(len(tokens))
    visible = Visibility.pack(sees, depths, len(prompt))
    positions = torch.tensor(depths)[None] + len(prompt)
    scope = PatchedAttention(model, attention)
    with scope:
        output = model(
            input_ids=tokens[None],
            position_ids=positions,
            use_cache=True,
            **{CACHE: cache},
            **scope.keywords(visible),
        )
    return output.logits[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choice", ["auto", "reference"])
@torch.no_grad()
def test_a_trie_gets_the_logits_of_its_paths(family, choice):
    model = tiny_target(family, dtype=torch.float64)
    rng = np.random.default_rng(4)
    sees, depths = random_trie(NODES, rng, reach=4)
    prompt, tokens = (torch.from_numpy(rng.integers(VOCAB, size=size)) for size in (PROMPT, NODES))
    attention = Attention(choice)
    tolerance = (
        1e-5 if family == "gemma2" else 1e-9
    )  # transformers' own soft-capped softmax is single precision
    logits = verify(model, prompt, tokens, sees, depths, attention)
    for node in range(NODES):
        path = tokens[torch.from_numpy(sees[node])]
        alone = model(input_ids=torch.cat([prompt, path])[None]).logits[0, -1]
        assert torch.allclose(logits[node], alone, rtol=0, atol=tolerance), node
    soft_capped = family == "gemma2"
    assert attention.used == (("reference",) if soft_capped or choice == "reference" else ("sdpa",))


def registries():
    return dict(ALL_ATTENTION_FUNCTIONS), dict(ALL_MASK_ATTENTION_FUNCTIONS)


@torch.no_grad()
def test_a_scope_leaves_everything_as_it_was():
    model, other = tiny_target("gemma3"), tiny_target("llama")
    tokens = torch.arange(5)[None]
    before, attention = registries(), model.config._attn_implementation
    logits = model(input_ids=tokens).logits
    with PatchedAttention(model, Attention()), PatchedAttention(other, Attention()):
        with PatchedAttention(model, Attention()):
            assert model.config._attn_implementation != attention
        assert model.config._attn_implementation != attention
    assert registries() == before and model.config._attn_implementation == attention
    with pytest.raises(RuntimeError, match="inside"), PatchedAttention(model, Attention()):
        raise RuntimeError("inside")
    assert registries() == before and model.config._attn_implementation == attention
    assert torch.equal(model(input_ids=tokens).logits, logits)


@torch.no_grad()
def test_a_call_without_a_trie_is_refused():
    model = tiny_target("llama")
    with pytest.raises(ValueError, match="without `reanchor_call`"), PatchedAttention(model, Attention()):
        model(input_ids=torch.arange(5)[None])


@torch.no_grad()
def test_a_cache_that_forgets_rows_is_refused():
    model = tiny_target("gemma3")
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.arange(20)[None], use_cache=True, **{CACHE: cache})
    visible = Visibility.pack(*random_trie(3, np.random.default_rng(0)), 20)
    scope = PatchedAttention(model, Attention())
    with pytest.raises(ValueError, match="it must keep every row"), scope:
        model(input_ids=torch.arange(3)[None], use_cache=True, **{CACHE: cache}, **scope.keywords(visible))


def test_a_window_that_only_the_mask_holds_is_refused():
    shape = {**SHAPE, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    window = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3}
    made = Qwen2MoeForCausalLM(Qwen2MoeConfig(**shape, **window, shared_expert_intermediate_size=8))
    assert "in the mask alone" in str(attention_refusal(made))


def test_keywords_are_read_in_the_source():
    gpt_oss = passed_keywords(GptOssAttention)
    assert {"sliding_window", "s_aux", "scaling"} <= gpt_oss
    assert "sliding_window" not in passed_keywords(LlamaAttention)


def test_models_that_cannot_be_served_are_refused_with_the_reason():
    model = tiny_target("llama")
    assert attention_refusal(model) is None
    model.model.layers[0].self_attn.sinks = torch.zeros(4)
    assert "attention sinks" in str(attention_refusal(model))
    del model.model.layers[0].self_attn.sinks
    for made in (tiny_target(family) for family in set(FAMILIES) - {"gemma2"}):  # it asks for eager attention
        assert attention_refusal(made) is None
    model.config.layer_types = ["chunked_attention"] * 3
    with pytest.raises(ValueError, match="layers of type chunked_attention; verify through"):
        PatchedAttention(model, Attention())
    assert "attention interface" in str(attention_refusal(torch.nn.Linear(2, 2)))
