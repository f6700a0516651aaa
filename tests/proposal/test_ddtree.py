"""The likeliest tree against brute force, and decoding with it against plain decoding."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.core import Draft
from reanchor.proposal import TreeBuilder
from reanchor.proposal.ddtree import grow_best_first
from tests.tiny import ScriptedDrafter, greedy, tiny_target

PROMPT = torch.tensor([3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9])
rows = st.lists(
    st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3).map(lambda row: sorted(row, reverse=True)),
    min_size=1,
    max_size=3,
)


def candidates(depths: int) -> list[list[int]]:
    return [[10 * depth + rank for rank in range(3)] for depth in range(depths)]


def paths_of(builder: TreeBuilder) -> set[tuple[int, ...]]:
    found = []
    for node in range(len(builder.tokens)):
        path = []
        while node:
            path.append(builder.tokens[node])
            node = builder.parents[node]
        found.append(tuple(reversed(path)))
    assert len(set(found)) == len(found)
    return set(found)


@settings(deadline=None)
@given(rows, st.integers(1, 45), st.integers(0, 4))
def test_holds_the_likeliest_prefixes(weights, budget, max_depth):
    log_probs = [[math.log(value / sum(row)) for value in row] for row in weights]
    builder = TreeBuilder(99, budget, max_depth)
    grow_best_first(builder, candidates(len(weights)), log_probs)
    score = {
        tuple(10 * depth + rank for depth, rank in enumerate(ranks)): sum(
            log_probs[depth][rank] for depth, rank in enumerate(ranks)
        )
        for length in range(min(len(weights), max_depth) + 1)
        for ranks in itertools.product(range(3), repeat=length)
    }
    best = sorted(score.values(), reverse=True)[:budget]
    kept = sorted((score[path] for path in paths_of(builder)), reverse=True)
    assert kept == pytest.approx(best)
    assert max(builder.depths) <= max_depth


class Candidates(ScriptedDrafter):
    """The right token is the second candidate at every second position, so that a chain fails there."""

    def draft(self, anchor, retained, shifts, cache, top_k=0) -> Draft:
        self.asked = top_k
        draft = super().draft(anchor, retained, shifts, cache)
        rows, scores = [], []
        for place, token in enumerate(draft.blocks[0][1:]):
            other = [(token + 1) % self.vocab, (token + 2) % self.vocab]
            rows.append([other[0], token, other[1]] if place % 2 else [token, *other])
            scores.append([math.log(p) for p in (0.6, 0.3, 0.1)])
        chain = [anchor, *(row[0] for row in rows)]
        return Draft((0,), [chain], torch.tensor([rows]), torch.tensor([scores]))


@pytest.mark.parametrize("budget", [None, 1, 2, 9])
def test_equals_plain_and_pays_its_budget(budget):
    model = tiny_target()
    truth = greedy(model, PROMPT, 30)
    drafter = Candidates(PROMPT.tolist() + truth)
    config = DecodeConfig(method="ddtree", max_nodes=budget)
    steps = list(SpeculativeDecoder(model, drafter, config).decode(PROMPT, SamplingConfig(max_new_tokens=30)))
    assert [token for step in steps for token in step.tokens] == truth
    assert drafter.asked == (budget or 64) - 1
    assert max(len(step.tree) for step in steps) == (budget or 64)
    chain = SpeculativeDecoder(model, drafter, DecodeConfig(method="dflash"))
    rounds = len(list(chain.decode(PROMPT, SamplingConfig(max_new_tokens=30))))
    assert (len(steps) < rounds) == ((budget or 64) > 3)


def test_a_drafter_without_candidates_is_refused():
    model = tiny_target()
    decoder = SpeculativeDecoder(model, ScriptedDrafter([1] * 99), DecodeConfig(method="ddtree"))
    with pytest.raises(ValueError, match="needs candidates"):
        list(decoder.decode(PROMPT))
