"""Hybrids of every family against transformers one token at a time: nodes of random trees, committed states, what comes
after them, and nothing left behind.
"""

from __future__ import annotations

import copy
import inspect
import random
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from reanchor import SpeculativeDecoder
from reanchor.cache import TreeCache
from reanchor.core import Tree
from reanchor.recurrent import causal_convolution, solve
from reanchor.recurrent.patched_layers import recurrent_modules, sizes_of
from reanchor.target import Target
from tests.test_target import random_tree, root_path

from .models import FAMILIES, tiny_hybrid

EVERY = sorted(FAMILIES)
# transformers computes recurrences and norms in single precision whatever the model's
CLOSE: dict[str, Any] = {"rtol": 2e-4, "atol": 1e-4}


class Stepping:
    """transformers' own decoding of one text, a token a pass."""

    def __init__(self, model: PreTrainedModel, prompt: list[int]) -> None:
        self.model, self.length = model, 0
        self.cache = DynamicCache(config=model.config)
        parameters = inspect.signature(model.forward).parameters
        self.name = "cache" if "cache" in parameters else "past_key_values"
        self.logits = self.feed(prompt)

    @torch.no_grad()
    def feed(self, tokens: list[int]) -> torch.Tensor:
        positions = torch.arange(self.length, self.length + len(tokens))
        keywords = {self.name: self.cache, "use_cache": True, "position_ids": positions[None]}
        self.logits = self.model(input_ids=torch.tensor([tokens]), **keywords).logits[0, -1]
        self.length += len(tokens)
        return self.logits

    def then(self, token: int) -> Stepping:
        """Another text, one token longer."""
        longer = copy.copy(self)
        longer.cache = copy.deepcopy(self.cache)
        longer.feed([token])
        return longer

    def along(self, tree: Tree) -> list[Stepping]:
        """After every node."""
        made: list[Stepping] = []
        for node, parent in enumerate(tree.parents):
            made.append((made[parent] if parent >= 0 else self).then(tree.tokens[node]))
        return made


def assert_states(cache: TreeCache, other: Any) -> None:
    assert cache.states
    for index, layer in cache.states.items():
        theirs = other.layers[index]
        torch.testing.assert_close(layer.conv_states[0], theirs.conv_states[0], **CLOSE)
        if theirs.recurrent_states[0] is not None:
            state = layer.recurrent_states[0]
            torch.testing.assert_close(state, theirs.recurrent_states[0].to(state.dtype), **CLOSE)


def assert_follows(model: PreTrainedModel, target: Target, length: int, rounds: int, nodes: int) -> None:
    rng = random.Random(length)
    prompt = [rng.randrange(64) for _ in range(length)]
    cache, text = target.new_cache(), Stepping(model, prompt)
    first = target.prefill(torch.tensor(prompt), cache)
    torch.testing.assert_close(first.logits[-1], text.logits)
    for _round in range(rounds):
        tree = random_tree(rng, nodes)
        output = target.verify(tree, cache)
        after = text.along(tree)
        for node, each in enumerate(after):
            torch.testing.assert_close(output.logits[node], each.logits, **CLOSE)
        node = rng.randrange(len(tree))
        cache.commit(root_path(tree, node))
        text = after[node]
        assert cache.length == text.length
        assert_states(cache, text.cache)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("family", EVERY)
def test_every_node_is_its_path_one_token_at_a_time(family, dtype):
    """Prompts shorter than the convolution, of a single token, and longer ones."""
    model = tiny_hybrid(family, dtype=dtype)
    target = Target(model, (0, 1))
    for length, rounds, nodes in ((1, 2, 5), (2, 1, 9), (11, 2, 12)):
        assert_follows(model, target, length, rounds, nodes)


@pytest.mark.parametrize("family", EVERY)
def test_every_node_can_be_committed_and_gone_on_from(family):
    model = tiny_hybrid(family)
    target, rng = Target(model), random.Random(5)
    cache, text = target.new_cache(), Stepping(model, [5, 6, 7])
    target.prefill(torch.tensor([5, 6, 7]), cache)
    tree, following = random_tree(rng, 8), random_tree(rng, 4)
    target.verify(tree, cache)
    for node, after in enumerate(text.along(tree)):
        twin = copy.deepcopy(cache)
        twin.commit(root_path(tree, node))
        output = target.verify(following, twin)
        last = root_path(following, len(following) - 1)
        for each in last:
            after = after.then(following.tokens[each])
        torch.testing.assert_close(output.logits[last[-1]], after.logits, **CLOSE)


@pytest.mark.parametrize("family", EVERY)
def test_the_models_own_attention_under_a_mask_gives_the_same(family):
    model = tiny_hybrid(family)
    target = Target(model)
    if target.scope is None:
        pytest.skip("it has no attention")
    tree = random_tree(random.Random(1), 14)
    outputs = []
    for scope in (target.scope, None):
        target.scope = scope
        cache = target.new_cache()
        target.prefill(torch.arange(3, 9), cache)
        outputs.append(target.verify(tree, cache).logits)
    torch.testing.assert_close(outputs[0], outputs[1], **CLOSE)


@pytest.mark.parametrize(
    "fault", ["siblings in the recurrence", "siblings in the convolution", "no decay on commit"]
)
def test_planted_faults_are_seen(fault, monkeypatch):
    """What the tests above compare does differ where the room is wrong."""
    if fault == "siblings in the recurrence":
        verify = solve.verify

        def careless(problem):
            problem.lineage.sees.fill_(True).tril_()
            return verify(problem)

        monkeypatch.setattr(solve, "verify", careless)
    elif fault == "siblings in the convolution":
        verify = causal_convolution.verify

        def in_order(rows, weight, bias, committed, lineage):
            width = weight.shape[1]
            places = torch.arange(width)[:, None] + torch.arange(len(rows))
            lineage.memo["windows", width] = places
            return verify(rows, weight, bias, committed, lineage)

        monkeypatch.setattr(causal_convolution, "verify", in_order)
    else:
        commit = solve.commit
        monkeypatch.setattr(
            solve, "commit", lambda state, *rest, **how: commit(state, *rest, **how).add_(state, alpha=0.1)
        )
    model = tiny_hybrid("qwen3_5")
    with pytest.raises(AssertionError):
        assert_follows(model, Target(model), 11, 3, 12)


@pytest.mark.parametrize("family", EVERY)
def test_a_pass_leaves_the_model_and_what_is_committed_as_they_were(family):
    model = tiny_hybrid(family)
    target = Target(model)
    modules = recurrent_modules(model)
    before = [dict(vars(module)) for module in modules.values()]
    cache = target.new_cache()
    target.prefill(torch.arange(3, 9), cache)
    held = copy.deepcopy(cache)
    tree = random_tree(random.Random(1), 9)
    first = target.verify(tree, cache).logits

    handle = model.get_output_embeddings().register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        target.verify(tree, cache)
    handle.remove()
    assert [dict(vars(module)) for module in modules.values()] == before
    assert_states(cache, held)
    with pytest.raises(ValueError, match="verified last, and none was"):
        cache.commit([0])
    assert_states(cache, held)
    assert cache.length == held.length == 6
    assert torch.equal(target.verify(tree, cache).logits, first)


def test_a_prompt_that_fails_half_way_is_not_in_the_state():
    model = tiny_hybrid("qwen3_5")
    target, cache, prompt = Target(model), TreeCache(model.config), torch.arange(3, 9)
    handle = model.get_output_embeddings().register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        target.prefill(prompt, cache)
    handle.remove()
    output = target.prefill(prompt, cache)
    torch.testing.assert_close(output.logits, target.prefill(prompt, target.new_cache()).logits)
    assert_states(cache, Stepping(model, prompt.tolist()).cache)


def test_a_tree_behind_nothing_and_a_shorter_text_are_refused():
    model = tiny_hybrid("qwen3_5")
    target = Target(model)
    cache = target.new_cache()
    with pytest.raises(ValueError, match="the cache is empty"):
        target.verify(random_tree(random.Random(1), 4), cache)
    target.prefill(torch.arange(3, 9), cache)
    assert not cache.is_croppable
    cache.crop(0)
    with pytest.raises(ValueError, match="cannot drop 2 tokens.*one state"):
        cache.crop(-2)
    cache.reset()
    output = target.prefill(torch.arange(3, 9), cache)
    assert torch.equal(output.logits, target.prefill(torch.arange(3, 9), target.new_cache()).logits)


def test_another_model_of_the_class_is_not_touched_while_a_tree_is_verified():
    model, other = tiny_hybrid("qwen3_5"), tiny_hybrid("qwen3_5", seed=2)
    text = torch.arange(5)[None]
    want, seen = other(input_ids=text).logits, []
    target = Target(model)
    cache = target.new_cache()
    target.prefill(torch.arange(3, 9), cache)
    handle = model.model.norm.register_forward_pre_hook(lambda *_: seen.append(other(input_ids=text).logits))
    target.verify(random_tree(random.Random(1), 4), cache)
    handle.remove()
    assert torch.equal(seen[0], want)


def test_a_layer_that_was_given_another_forward_is_not_passed_by():
    model = tiny_hybrid("qwen3_5")
    decoder = SpeculativeDecoder(model)
    layer = model.model.layers[0].linear_attn
    layer.forward = lambda *args, **keywords: None
    with pytest.raises(ValueError, match="linear_attn is a Qwen3_5GatedDeltaNet: its forward is not"):
        list(decoder.decode([1, 2, 3]))


def test_nemotrons_time_steps_are_those_of_its_form_for_one_token():
    """Below `time_step_min` its two forms differ: prompts are clamped there, single tokens are not."""
    model = tiny_hybrid("nemotron_h")
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):
            parameter.fill_(-9.0)
        elif name.endswith("A_log"):
            parameter.fill_(7.0)
    text = torch.arange(3, 12)
    stepped = Stepping(model, text[:1].tolist())
    for token in text[1:].tolist():
        stepped.feed([token])
    at_once = model(input_ids=text[None], position_ids=torch.arange(9)[None]).logits[0, -1]
    assert (at_once - stepped.logits).abs().max() > 1e-2
    assert_follows(model, Target(model), 11, 2, 12)


@pytest.mark.parametrize("family", EVERY)
def test_the_estimate_of_memory_is_what_is_held(family):
    model = tiny_hybrid(family)
    target = Target(model)
    cache = target.new_cache()
    target.prefill(torch.arange(3, 9), cache)
    tree = random_tree(random.Random(1), 7)
    target.verify(tree, cache)
    for module in recurrent_modules(model).values():
        sizes, layer, kept = sizes_of(module), cache.states[module.layer_idx], cache.held[module.layer_idx]
        state, recurrence = layer.recurrent_states[0], kept.recurrence
        assert sizes.state == (0 if state is None else state.numel())
        assert sizes.columns == layer.conv_states[0].numel()
        held = kept.rows.numel() + (recurrence.keys.numel() + recurrence.writes.numel() if recurrence else 0)
        assert sizes.kept * len(tree) == held
