"""Packed passes equal one anchor at a time as decoding does it, and nobody sees what is another's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from reanchor.config import DecodeConfig
from reanchor.core import Draft, Retained
from reanchor.proposal import TreeBuilder
from reanchor.proposal.retention import rejected_path
from reanchor.sampling import TokenSelector
from reanchor.training.anchors import rng_of, sample_anchors
from reanchor.training.feature_store import grow
from reanchor.training.packed import CarryoverRows, block_states
from reanchor.training.transitions import advance, draft_tokens
from reanchor.verification import verify
from tests.drafters import writer
from tests.proposal.proposers import assemble
from tests.training.tiny import drafter_for, recorded, teacher_of

MODEL = writer.tiny_target().requires_grad_(False)
RESPONSE = recorded(MODEL)
IDS = torch.tensor(RESPONSE.ids)
FULL, SLIDING = "full_attention", "sliding_attention"
WINDOW = {"layer_types": [SLIDING, FULL], "sliding_window": 6, "use_sliding_window": True}
RULES = {
    "full": {},
    "window": WINDOW,
    "window both ways": WINDOW | {"is_causal": False},
    "causal": {"is_causal": True},
}


@pytest.fixture(scope="module", params=RULES)
def drafter(request, tmp_path_factory):
    return drafter_for(tmp_path_factory.mktemp("drafter"), MODEL, **RULES[request.param])


@pytest.fixture(scope="module")
def features(drafter):
    return teacher_of(MODEL, drafter).features(RESPONSE)


def some_rows(drafter, anchors, counts, seed=4):
    """Random carried rows, counts[b] of them for block b, at the positions decoding gives them."""
    generator = torch.Generator().manual_seed(seed)
    width = drafter.body.fc.in_features
    owners = torch.arange(len(anchors)).repeat_interleave(torch.tensor(counts))
    positions = torch.cat(
        [anchor + torch.arange(count) for anchor, count in zip(anchors, counts, strict=True)]
    )
    return CarryoverRows(
        torch.randn(sum(counts), width, generator=generator, dtype=torch.float64), owners, positions
    )


def alone(drafter, features, anchor, rows=None):
    """What a decode drafts at this anchor: committed context in a cache, rows carried over. -> [K, H]"""
    cache = drafter.new_cache()
    drafter.commit(features[:anchor], cache)
    ids = torch.full((1, drafter.block_size), drafter.config.mask_token_id)
    ids[:, 0] = IDS[anchor]
    return drafter.states(ids, (0,), rows, cache, "baseline")[0]


ANCHORS = torch.tensor([7, 12, 13, 29, 41])
COUNTS = [3, 0, 2, 1, 3]


def test_packed_equals_one_by_one(drafter, features):
    carried = some_rows(drafter, ANCHORS, COUNTS)
    packed = block_states(drafter, IDS, features, ANCHORS, carried)
    for block, anchor in enumerate(ANCHORS.tolist()):
        rows = carried.features[carried.owners == block]
        expected = alone(drafter, features, anchor, rows if len(rows) else None)
        torch.testing.assert_close(packed[block], expected, atol=1e-12, rtol=1e-10)


def test_a_carried_row_is_seen_by_its_block_alone(drafter, features):
    carried = some_rows(drafter, ANCHORS, COUNTS)
    before = block_states(drafter, IDS, features, ANCHORS, carried)
    moved = replace(carried, features=carried.features + (carried.owners == 2)[:, None] * 1.0)
    after = block_states(drafter, IDS, features, ANCHORS, moved)
    assert [not torch.equal(x, y) for x, y in zip(before, after, strict=True)] == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_no_block_sees_the_future(drafter, features):
    before = block_states(drafter, IDS, features, ANCHORS)
    changed = features.clone()
    changed[13:] += 1.0
    after = block_states(drafter, IDS, changed, ANCHORS)
    same = [torch.equal(x, y) for x, y in zip(before, after, strict=True)]
    assert same == [True, True, True, False, False]


def test_without_rejected_rows_it_is_the_baseline(drafter, features):
    empty = some_rows(drafter, ANCHORS, [0] * 5)
    assert torch.equal(
        block_states(drafter, IDS, features, ANCHORS, empty), block_states(drafter, IDS, features, ANCHORS)
    )


def helped(anchor, draft):
    """The draft with its first anchor % 4 tokens put right, so that rejection comes at every place."""
    right = anchor % 4
    return IDS[anchor + 1 : anchor + 1 + right].tolist() + draft[right:]


def one_round(drafter, teacher, anchor):
    """The engine's own first round of a decode whose prompt ends before `anchor`."""
    config = DecodeConfig("dflash", carryover=True)
    target, cache, context = teacher.target, teacher.target.new_cache(), drafter.new_cache()
    output = target.prefill(IDS[:anchor], cache)
    selector = TokenSelector(IDS[:anchor], 100)
    first = verify(TreeBuilder(int(IDS[anchor - 1])).freeze(), output.logits, selector)
    drafter.commit(output.features, context)
    draft = drafter.draft(first.tokens[-1], Retained(), (), context)
    draft = Draft((0,), [[first.tokens[-1], *helped(anchor, draft.blocks[0][1:])]])
    tree = assemble(draft, Retained(), config, 99)
    output = target.verify(tree, cache)
    result = verify(tree, output.logits, selector)
    rejected = rejected_path(tree, result, config.rules.retention)
    return first.tokens[-1], len(result.path) - 1, output.features[rejected]


def test_transitions_are_those_of_a_real_decode(drafter, features, monkeypatch):
    teacher, own = teacher_of(MODEL, drafter), draft_tokens
    anchors = list(range(6, 43))

    def planned(drafter, ids, features, at):
        drafts = own(drafter, ids, features, at).tolist()
        return torch.tensor([helped(*each) for each in zip(at.tolist(), drafts, strict=True)])

    monkeypatch.setattr("reanchor.training.transitions.draft_tokens", planned)
    moved = advance(drafter, teacher, RESPONSE, features, anchors)
    assert len(moved.accepted) == len(anchors) and len(moved.anchors) + moved.dropped == len(anchors)
    kept = 0
    for anchor, count in zip(anchors, moved.accepted, strict=True):
        token, accepted, rejected = one_round(drafter, teacher, anchor)
        assert token == IDS[anchor] and accepted == count
        if anchor + count + 1 + drafter.proposals >= len(IDS):
            continue
        assert moved.anchors[kept] == anchor + count + 1
        rows = moved.carried.owners == kept
        assert moved.carried.positions[rows].tolist() == list(
            range(anchor + count + 1, anchor + count + 1 + len(rejected))
        )
        if len(rejected):
            torch.testing.assert_close(moved.carried.features[rows], rejected, atol=1e-12, rtol=1e-10)
        kept += 1
    assert kept == len(moved.anchors)
    assert set(moved.accepted) >= {0, 1, 2, 3}


def test_branches_cannot_see_each_other(drafter, features):
    """Change one anchor's draft: the judged rows of the others stay."""
    teacher, anchors = teacher_of(MODEL, drafter), [8, 9, 20]
    drafts = draft_tokens(drafter, IDS, features, torch.tensor(anchors)).tolist()
    other = [drafts[0], [(token + 1) % 90 for token in drafts[1]], drafts[2]]
    before, after = grow(RESPONSE, anchors, drafts), grow(RESPONSE, anchors, other)
    first, second = (teacher.judge(RESPONSE, each.tree).features for each in (before, after))
    for block in (0, 2):
        torch.testing.assert_close(
            first[before.paths[block]], second[after.paths[block]], atol=1e-12, rtol=1e-10
        )
    assert not torch.allclose(first[before.paths[1]], second[after.paths[1]])


def test_full_acceptance_is_kept_without_rows(drafter, features, monkeypatch):
    truth = IDS[torch.tensor([10, 20])[:, None] + 1 + torch.arange(drafter.proposals)]
    monkeypatch.setattr("reanchor.training.transitions.draft_tokens", lambda *_: truth)
    moved = advance(drafter, teacher_of(MODEL, drafter), RESPONSE, features, [10, 20])
    assert moved.accepted == [drafter.proposals] * 2 and moved.dropped == 0
    assert moved.anchors.tolist() == [10 + drafter.proposals + 1, 20 + drafter.proposals + 1]
    assert len(moved.carried.owners) == 0


def test_anchors_leave_room_and_repeat_only_with_their_seed():
    proposals = 3
    anchors = sample_anchors(RESPONSE, proposals, 1000, rng_of(1, 2))
    assert anchors == list(range(6, len(IDS) - proposals))
    few = [sample_anchors(RESPONSE, proposals, 5, rng_of(1, place)) for place in (0, 0, 1)]
    assert few[0] == few[1] != few[2] and len(set(few[0])) == 5
