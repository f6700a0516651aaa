"""Figures against a run worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.core import Round, Tree, VerifyResult
from reanchor.proposal import TreeBuilder
from reanchor.stats import Recorder, RoundStats, Stats
from tests.tiny import ScriptedDrafter, greedy, tiny_target

PROMPT = torch.tensor([3, 14, 15, 9])
ROUND = RoundStats(2, 1, 5, 1, 0, 0, 2, 0, 0, 0.1, {"verify": 0.1})


def record(mode: str, new: int) -> Stats:
    model = tiny_target("llama")
    drafter = ScriptedDrafter(PROMPT.tolist() + greedy(model, PROMPT, new), mode)
    decoder = SpeculativeDecoder(model, drafter, DecodeConfig("reanchor"))
    recorder = Recorder("reanchor", len(PROMPT), proposals=drafter.proposals, limit=new)
    for step in decoder.decode(PROMPT, SamplingConfig(max_new_tokens=new), stage=recorder.stage):
        recorder.add(step)
    return recorder.stats


def test_a_perfect_drafter_by_hand():
    """Eleven tokens: one from the prefill, five a round, all drafts accepted."""
    figures = record("right", 11).to_dict()
    assert figures["tokens"] == 11 and figures["rounds"] == 2 and figures["prompt_tokens"] == 4
    assert figures["tau"] == 5 and figures["drafts_accepted_per_round"] == 4
    assert figures["nodes_per_round"] == 5 and figures["blocks_per_round"] == 1
    assert figures["histogram"] == {"5": 2} and figures["position_rates"] == [1, 1, 1, 1]
    assert figures["full_rounds"] == 1 and figures["shifted_share"] == 0


def test_a_useless_drafter_by_hand():
    stats = record("wrong", 4)
    figures = stats.to_dict()
    assert figures["rounds"] == 3 and figures["tau"] == 1 and figures["drafts_accepted_per_round"] == 0
    assert figures["position_rates"] == [0]
    assert figures["full_rounds"] is None  # none had room for the four drafts of a block
    assert record("wrong", 8).to_dict()["full_rounds"] == 0
    # the depth is cut to the tokens still allowed: 2 drafts, then 1, then none and no call of the drafter's worth
    assert [each.depth for each in stats.rounds] == [2, 1, 0]
    assert [each.retained for each in stats.rounds] == [0, 2, 1]
    assert [each.blocks for each in stats.rounds] == [1, 3, 0]


@pytest.mark.parametrize(
    "depth, accepted, limit, full",
    [
        (6, 4, 99, True),  # a shifted block went on beyond the four, and was not taken whole
        (3, 3, 99, False),  # all of a tree that is no block
        (4, 3, 99, False),
        (4, 4, 6, True),  # the prefill's token, four drafts, the bonus
        (3, 3, 5, None),  # no room for the fourth
    ],
)
def test_a_full_round_is_one_with_a_block_s_worth_of_drafts(depth, accepted, limit, full):
    recorder = Recorder("reanchor", 4, proposals=4, limit=limit)
    with recorder.stage("prefill"):
        pass
    recorder.add(chain_step(0, 0))
    recorder.add(chain_step(depth, accepted))
    (only,) = recorder.stats.rounds
    assert (only.full, recorder.stats.full_rounds()) == (full, full)


def chain_step(depth: int, accepted: int) -> Round:
    """One path, of which so many drafts are taken."""
    builder = TreeBuilder(0)
    builder.insert(list(range(depth + 1)), 0)
    tokens = [*range(1, accepted + 1), 50]
    result = VerifyResult(list(range(accepted + 1)), tokens, [], False)
    return Round(tokens, builder.freeze(), result, 1, 0, False)


def test_times_add_up_and_the_dict_is_json():
    stats = record("second", 20)
    split = stats.stage_seconds()
    assert sum(split.values()) == pytest.approx(stats.decode_seconds)
    assert min(split.values()) >= 0 and stats.time_to_first_token > 0
    assert json.loads(json.dumps(stats.to_dict()))["tau"] == stats.tau


def test_figures_of_nothing():
    figures = Stats().to_dict()
    assert figures["tau"] is None and figures["tokens_per_second"] is None and figures["position_rates"] == []


def test_adding_up():
    one, two = record("right", 11), record("wrong", 4)
    rounds = len(one.rounds) + len(two.rounds)
    one.add(two)
    assert one.tokens == 15 and len(one.rounds) == rounds and one.tau == pytest.approx(13 / 5)


def test_edges_and_reliability_by_hand():
    """Root with children 1 (taken) and 2, 1 with child 3 (not taken), 2 with child 4 (nobody came by)."""
    tree = Tree(
        [9, 1, 2, 3, 4],
        [-1, 0, 0, 1, 2],
        [0, 1, 1, 2, 2],
        [-1, 0, 0, 0, 0],
        [],
        values=[1, 0.8, 0.1, 0.6, 0.05],
    )
    result = VerifyResult([0, 1], [1, 7], [1, 7, 0, 0, 0], stopped=False)
    step = Round([1, 7], tree, result, drafted=1, retained=0, stopped=False)
    assert step.edges == [(0.8, True), (0.1, False), (0.75, False)]
    ended = Round([1, 7], tree, replace(result, stopped=True), drafted=1, retained=0, stopped=True)
    assert ended.edges == [(0.8, True), (0.1, False)]  # what the last token would have met was never asked
    rounds = [replace(ROUND, edges=step.edges), replace(ROUND, edges=ended.edges)]
    assert Stats("auto", rounds=rounds).reliability(bins=2) == [
        {"price": pytest.approx(0.1), "taken": 0, "edges": 2},
        {"price": pytest.approx((0.8 + 0.75 + 0.8) / 3), "taken": pytest.approx(2 / 3), "edges": 3},
    ]
    assert Stats("plain", rounds=[ROUND]).reliability() == []


def test_a_value_too_small_for_a_number_is_no_division_by_zero():
    tree = Tree([9, 1, 2], [-1, 0, 1], [0, 1, 2], [-1, 0, 0], [], values=[1, 0.0, 0.0])
    result = VerifyResult([0, 1], [1, 2], [1, 2, 0], stopped=False)
    assert Round([1, 2], tree, result, 1, 0, False).edges == [(0.0, True), (0.0, False)]
