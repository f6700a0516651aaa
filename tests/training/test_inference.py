"""Carryover while decoding: who reads carried rows, how long they live, and that the output stays the target's."""

from __future__ import annotations

import itertools

import pytest
import torch

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.core import Retained
from reanchor.drafters.load import load_drafter
from reanchor.training.drafter_shape import DrafterShape
from reanchor.training.initialization import init_drafter
from reanchor.training.packed import CarryoverRows, block_states
from tests.drafters import writer
from tests.tiny import greedy
from tests.training.tiny import drafter_for, recorded, teacher_of

MODEL = writer.tiny_target().requires_grad_(False)
RESPONSE = recorded(MODEL)
IDS = torch.tensor(RESPONSE.ids)
AT, N = 20, 3


@pytest.fixture(scope="module")
def drafter(tmp_path_factory):
    return drafter_for(tmp_path_factory.mktemp("drafter"), MODEL)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return drafter_for(tmp_path_factory.mktemp("plain"), MODEL, carryover=False)


@pytest.fixture(scope="module")
def features(drafter):
    return teacher_of(MODEL, drafter).features(RESPONSE)


def retained(drafter, seed=2):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(N, drafter.body.fc.in_features, generator=generator, dtype=torch.float64)
    return Retained((5, 6, 8), rows)


def slots(drafter, features, states, carry):
    """Final states of the baseline and of every shifted block, in one batched draft. -> [1 + N, K, H]"""
    cache = drafter.new_cache()
    drafter.commit(features[:AT], cache)
    ids = torch.full((1 + N, drafter.block_size), drafter.config.mask_token_id)
    ids[:, 0] = torch.tensor([int(IDS[AT]), *states.tokens])
    return drafter.states(ids, (0, 1, 2, 3), states.features, cache, carry)


@pytest.mark.parametrize("carry", ["none", "baseline", "all"])
def test_who_reads_what(drafter, features, carry):
    """Each block of the batched draft equals a packed pass that gives it its rows one by one."""
    states = retained(drafter)
    found = slots(drafter, features, states, carry)
    for offset in range(1 + N):
        reads = {"none": (), "baseline": () if offset else range(N), "all": range(offset, N)}[carry]
        rows = [states.features[row] for row in range(offset)]
        rows += [states.features[row] + drafter.carryover_embedding for row in reads]
        positions = [*range(offset), *reads]
        carried = CarryoverRows(
            torch.stack(rows) if rows else states.features[:0],
            torch.zeros(len(rows), dtype=torch.long),
            AT + torch.tensor(positions, dtype=torch.long),
        )
        # the anchor's own token stands at its own position in a text made for it; its context ends at AT
        text = IDS.clone()
        text[AT + offset] = int(IDS[AT]) if not offset else states.tokens[offset - 1]
        gap = torch.zeros(offset, features.shape[1], dtype=torch.float64)
        context = torch.cat([features[:AT], gap])
        expected = hidden_with_gap(drafter, text, context, AT + offset, carried, offset)
        torch.testing.assert_close(found[offset], expected, atol=1e-12, rtol=1e-10)


def hidden_with_gap(drafter, text, context, anchor, carried, gap):
    """A packed pass whose last `gap` context rows are those the carried rows stand for."""
    features = context.clone()
    plain_rows = [row for row in range(len(carried.owners)) if row < gap]
    for row in plain_rows:
        features[int(carried.positions[row])] = carried.features[row]
    rest = CarryoverRows(carried.features[gap:], carried.owners[gap:], carried.positions[gap:])
    return block_states(drafter, text, features, torch.tensor([anchor]), rest, embed_carried=False)[0]


def test_carried_rows_live_one_round(drafter, features):
    """A draft with carried rows leaves the cache as one without: the next draft reads no trace of them."""
    caches = [drafter.new_cache(), drafter.new_cache()]
    drafts = []
    for cache, carry in zip(caches, ("baseline", "none"), strict=True):
        drafter.commit(features[:AT], cache)
        drafter.draft(int(IDS[AT]), retained(drafter), (), cache, carry=carry)
        assert len(cache) == cache.projected == AT
        drafter.commit(features[AT : AT + 2], cache)
        drafts.append(drafter.draft(int(IDS[AT + 2]), Retained(), (), cache, top_k=5, carry=carry))
    assert torch.equal(drafts[0].log_probs, drafts[1].log_probs) and drafts[0].blocks == drafts[1].blocks


def test_zero_embedding_and_nothing_rejected_is_the_baseline(drafter, plain, features):
    drafts = []
    for each, carry in ((drafter, "baseline"), (plain, "none")):
        cache = each.new_cache()
        each.commit(features[:AT], cache)
        drafts.append(each.draft(int(IDS[AT]), Retained(), (), cache, top_k=5, carry=carry))
    assert torch.equal(drafts[0].log_probs, drafts[1].log_probs)


@pytest.mark.parametrize("forward", ["transformers", "fused"])
@pytest.mark.parametrize("method", ["dflash", "reanchor", "ddtree", "auto"])
def test_every_mode_is_lossless(drafter, method, forward):
    """And every method has states to carry over, none of which stays in the target's cache."""
    prompt = torch.tensor(RESPONSE.prompt_ids)
    truth = greedy(MODEL, prompt, 24)
    usual = method == "auto"  # which has no use for rules; and without a budget it asks the clock what pays
    for shifted, retention in itertools.product((False, True), ("first",) if usual else ("first", "longest")):
        config = DecodeConfig.of(
            method=method,
            retention=retention,
            carryover=True,
            carryover_shifted=shifted,
            forward=forward,
            max_nodes=16 if usual else None,
        )
        found, read = [], 0
        for step in SpeculativeDecoder(MODEL, drafter, config).decode(prompt, SamplingConfig(24)):
            found += step.tokens
            read += step.retained
            assert step.cache.length == len(prompt) + len(found) - 1
        assert found == truth
        assert read > 0


def test_a_markov_drafter_carries_over_too(tmp_path):
    """With correction and confidence: the decode's draft is the packed pass's, and the output the target's."""
    init_drafter(
        tmp_path, None, DrafterShape(4, "1,3", "0,2,4", writer.MASK, markov_rank=5), MODEL, carryover=True
    )
    drafter = load_drafter(tmp_path, MODEL)
    generator = torch.Generator().manual_seed(6)
    for weight in (drafter.carryover_embedding, drafter.markov_head.markov_w2.weight):
        weight.data.normal_(generator=generator)
    states = retained(drafter)
    features = teacher_of(MODEL, drafter).features(RESPONSE)
    cache = drafter.new_cache()
    drafter.commit(features[:AT], cache)
    draft = drafter.draft(int(IDS[AT]), states, (), cache, carry="baseline")
    carried = CarryoverRows(states.features, torch.zeros(N, dtype=torch.long), AT + torch.arange(N))
    anchors = torch.tensor([AT])
    hidden = block_states(drafter, IDS, features, anchors, carried)
    assert draft.blocks[0][1:] == drafter.propose(hidden, IDS[anchors]).tokens[0].tolist()
    bare = drafter.draft(int(IDS[AT]), states, (), cache)
    assert bare.blocks != draft.blocks
    prompt = torch.tensor(RESPONSE.prompt_ids)
    for method in ("dflash", "reanchor"):
        steps = SpeculativeDecoder(MODEL, drafter, DecodeConfig(method)).decode(prompt, SamplingConfig(24))
        assert [token for step in steps for token in step.tokens] == greedy(MODEL, prompt, 24)


def test_on_by_default_where_it_was_learned(drafter, plain):
    assert SpeculativeDecoder(MODEL, drafter).config.carryover is True
    assert SpeculativeDecoder(MODEL, plain).config.carryover is False
    assert (
        SpeculativeDecoder(MODEL, drafter, DecodeConfig("reanchor", carryover=False)).config.carryover
        is False
    )
    with pytest.raises(ValueError, match="not trained to read rejected states.*turn it off"):
        SpeculativeDecoder(MODEL, plain, DecodeConfig("reanchor", carryover=True))


def test_off_keeps_nothing_in_a_chain(drafter):
    prompt = torch.tensor(RESPONSE.prompt_ids)
    for carryover, some in ((True, True), (False, False)):
        config = DecodeConfig("dflash", carryover=carryover)
        steps = list(SpeculativeDecoder(MODEL, drafter, config).decode(prompt, SamplingConfig(20)))
        assert any(step.retained for step in steps) is some and all(step.drafted <= 1 for step in steps)
