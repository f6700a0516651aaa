"""Every method with every dialect on every target family: the target's own tokens, and shifted blocks at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import reanchor.decoder
from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.config import Method
from reanchor.core import Draft, Retained, Round
from reanchor.drafters.base import Drafter
from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.context import ContextCache
from reanchor.drafters.load import load_drafter
from reanchor.proposal.latency import LatencyModel
from tests.tiny import FAMILIES, greedy

from .writer import DIALECTS, FAVOURED, REDUCED, TARGET_LAYERS, V, Written

PROMPT, NEW = torch.tensor([3, 14, 15, 92, 65, 35, 8, 9]), 14


@cache
def target_of(family: str) -> PreTrainedModel:
    """The family's tiny target at the writer's sizes; its answers are of a few tokens, so that random drafters
    are right now and then.
    """
    torch.manual_seed(7)
    small = FAMILIES[family]()
    config = small.config
    kinds = getattr(config, "layer_types", None)
    config.vocab_size, config.num_hidden_layers = V, TARGET_LAYERS
    if kinds:
        config.layer_types = (list(kinds) * TARGET_LAYERS)[:TARGET_LAYERS]
    config.tie_word_embeddings = False
    model = type(small)(config).eval().requires_grad_(False)
    model.generation_config.eos_token_id = None
    model.get_output_embeddings().weight[list(FAVOURED)] *= 8
    return model


@cache
def truth_of(family: str) -> list[int]:
    return greedy(target_of(family), PROMPT, NEW)


def fitted(written: Written, target: PreTrainedModel) -> Written:
    """A dialect that brings its own ends brings copies of the target's."""
    tensors = dict(written.tensors)
    if "embed_tokens.weight" in tensors:
        tensors["embed_tokens.weight"] = target.get_input_embeddings().weight.clone()
    if "lm_head.weight" in tensors:
        head = target.get_output_embeddings().weight
        kept = torch.arange(REDUCED) + tensors["d2t"] if "d2t" in tensors else torch.arange(V)
        tensors["lm_head.weight"] = head[kept].clone()
    return replace(written, tensors=tensors)


class Witness(Drafter):
    """A drafter that lets another draft and remembers the last call."""

    def __init__(self, drafter: BlockDrafter) -> None:
        self.drafter, self.features = drafter, torch.empty(0, drafter.body.fc.in_features)
        self.tap_layers, self.block_size = drafter.tap_layers, drafter.block_size
        self.proposals = drafter.proposals
        self.last: tuple[Tensor, int, Retained, Draft] | None = None

    def new_cache(self) -> ContextCache:
        return self.drafter.new_cache()

    def commit(self, features: Tensor, cache: ContextCache) -> None:
        self.features = torch.cat([self.features, features])
        self.drafter.commit(features, cache)

    def draft(
        self, anchor: int, retained: Retained, shifts: Sequence[int], cache: ContextCache, top_k: int = 0
    ) -> Draft:
        assert len(cache) == len(self.features)
        draft = self.drafter.draft(anchor, retained, shifts, cache, top_k)
        if self.last is None or len(shifts) >= len(self.last[3].offsets) - 1:
            self.last = (self.features, anchor, retained, draft)
        return draft


def decode(target: PreTrainedModel, drafter: Witness, method: Method) -> list[Round]:
    decoder = SpeculativeDecoder(target, drafter, DecodeConfig(method))
    return list(decoder.decode(PROMPT, SamplingConfig(max_new_tokens=NEW)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_method(dialect: str, family: str, tmp_path: Path) -> None:
    target = target_of(family)
    drafter = load_drafter(fitted(DIALECTS[dialect], target).save(tmp_path), target)
    methods: tuple[Method, ...] = ("reanchor", "dflash")
    for method in methods:
        witness = Witness(drafter)
        steps = decode(target, witness, method)
        assert [token for step in steps for token in step.tokens] == truth_of(family)
        assert witness.last is not None
        features, anchor, retained, draft = witness.last
        assert (len(draft.offsets) > 1) == (method == "reanchor")
        fresh = drafter.new_cache()
        drafter.commit(features, fresh)
        assert drafter.draft(anchor, retained, draft.offsets[1:], fresh).blocks == draft.blocks


@pytest.mark.parametrize("dialect", DIALECTS)
def test_drafts_are_accepted_and_shifts_match(dialect: str, tmp_path: Path) -> None:
    """Over the families together; else the test above would only see rejections."""
    accepted = matched = 0
    for family in FAMILIES:
        target = target_of(family)
        drafter = load_drafter(fitted(DIALECTS[dialect], target).save(tmp_path / family), target)
        steps = decode(target, Witness(drafter), "reanchor")
        accepted += sum(step.accepted for step in steps)
        matched += sum(step.tree.matched for step in steps)
    assert accepted > 0 and matched > 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_method_auto(dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets given and chosen, greedy and sampled with drafts that race or do not: the tokens of plain decoding, and
    a node of the drafter's accepted somewhere.
    """
    target, accepted = target_of("qwen3"), 0
    drafter = load_drafter(fitted(DIALECTS[dialect], target).save(tmp_path), target)
    monkeypatch.setattr(
        reanchor.decoder, "calibrate", lambda *_: LatencyModel({1: 1.0, 64: 1.3}, {1: 0.1, 8: 0.2})
    )
    monkeypatch.setattr(reanchor.decoder, "timed_stages", lambda stage, *_: stage)  # no clock here
    greedily, sampled = (
        SamplingConfig(NEW),
        SamplingConfig(NEW, temperature=0.9, top_p=0.95, seed=3),
    )
    for sampling, budget, sampling_mode in (
        (greedily, 9, "auto"),
        (greedily, None, "auto"),
        (sampled, 9, "auto"),
        (sampled, None, "auto"),
        (sampled, None, "exact-match"),
    ):
        plain = SpeculativeDecoder(target).decode(PROMPT, sampling)
        decoder = SpeculativeDecoder(
            target, drafter, DecodeConfig("auto", max_nodes=budget, sampling_mode=sampling_mode)
        )
        truth = [token for step in plain for token in step.tokens]
        for _ in range(2):  # the second begins with what the first learnt
            steps = list(decoder.decode(PROMPT, sampling))
            assert [token for step in steps for token in step.tokens] == truth
            accepted += sum(origin >= 0 for step in steps for origin in step.origins)
    assert accepted > 0
