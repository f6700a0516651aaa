"""What each source says of a node, against paths written out by hand."""

from __future__ import annotations

import pytest

from reanchor.proposal import sources
from reanchor.proposal.sources import (
    CoupledSource,
    PromptLookup,
    RecycledTokens,
    ShiftedCandidates,
    baseline_source,
)

ROWS = [{1: 0.5}, {2: 0.5}, {3: 0.5}]


def said(source, path, depth):
    return [(claim.source, dict(claim.chances)) for claim in source.claims(path, depth)]


def test_the_baseline_speaks_by_depth_alone():
    assert said(baseline_source(ROWS), [9, 9, 7], 1) == [("baseline", {2: 0.5})]
    assert said(baseline_source(ROWS), [7], 3) == []


def test_a_shifted_block_speaks_below_its_anchor():
    block = ShiftedCandidates(2, 5, ROWS)
    assert said(block, [7, 7, 5], 1) == [("shifted", {1: 0.5})]
    assert said(block, [7, 7, 5, 6, 5], 3) == [("shifted", {3: 0.5})]  # the earliest place counts
    assert said(block, [7, 7, 6], 1) == []
    assert said(block, [5, 6], 1) == []  # the anchor of the tree is no place to join


def test_a_raced_block_speaks_at_its_own_place_alone():
    """Other places have other times."""
    block = ShiftedCandidates(2, 5, ROWS, coupled=True)
    assert said(block, [7, 7, 5], 2) == [("shifted", {1: 0.5})]
    assert said(block, [7, 5, 5], 2) == [("shifted", {1: 0.5})]  # the earlier place is another's
    assert said(block, [7, 7, 5], 1) == []


def test_recall_knows_one_two_and_three_tokens():
    recall = RecycledTokens()
    recall.learn([1, 2, 3, 4], {5: 0.9})
    recall.learn([8, 4], {6: 0.8})
    assert said(recall, [2, 3, 4], 2) == [
        ("recall 3", {5: 0.9}),
        ("recall 2", {5: 0.9}),
        ("recall 1", {6: 0.8}),
    ]
    assert said(recall, [3], 0) == []


def test_recall_does_not_grow_without_end(monkeypatch):
    """A decode may be long; what was learnt last stays, the first time or again."""
    monkeypatch.setattr(sources, "MOST", 40)
    recall = RecycledTokens()
    for token in range(200):
        recall.learn([999], {token: 0.5})
        recall.learn([token, token + 1, token + 2], {token: 0.5})
        assert len(recall.known) <= 40 and (999,) in recall.known
        assert [claim.chances for claim in recall.claims([token, token + 1, token + 2], 0)] == [
            {token: 0.5}
        ] * 3
    assert len(recall.known) > 20


def test_a_token_without_a_time_is_not_said():
    """Embeddings may have rows that no score belongs to, as those of pictures; a prompt may hold them."""
    text = PromptLookup()
    text.extend([1, 9, 1, 2, 1])
    coupled = CoupledSource(text, lambda _depth: [1.0] * 5)
    (claim,) = coupled.claims([1], 0)
    assert claim.chances == {2: pytest.approx(0.5)}


def test_text_counts_what_followed_the_longest_context():
    text = PromptLookup()
    text.extend([1, 2, 3, 1, 2, 4, 1, 2, 3])
    assert said(text, [1, 2], 1) == [("text 2", {3: 2 / 3, 4: 1 / 3})]
    assert said(text, [7, 2], 1) == [("text 1", {3: 2 / 3, 4: 1 / 3})]
    assert said(text, [3, 1, 2], 0) == [("text 3", {4: 1.0})]
    assert said(text, [7], 0) == []
