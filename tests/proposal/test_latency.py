"""Sizes chosen from curves written down here: no clock, no model."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from reanchor.core import Draft, Plan, Retained
from reanchor.proposal.latency import LatencyModel, interpolate
from reanchor.proposal.planner import MAX_PROBE_BLOCKS, PROBE_TIME_SHARE, RoundPlanner
from reanchor.proposal.session_stats import PROBE_INTERVAL
from tests.proposal.proposers import auto_proposer

FLAT = {1: 1.0, 64: 1.0}  # a pass costs the same whatever its size: memory-bound
STEEP = {1: 1.0, 64: 64.0}  # every node costs a pass: compute-bound


def test_between_sizes_it_is_linear_and_beyond_them_too():
    curve = {1: 1.0, 4: 4.0, 8: 6.0}
    assert [interpolate(curve, size) for size in (1, 2, 4, 6, 8, 10)] == [1, 2, 4, 5, 6, 7]
    assert interpolate({1: 2.0}, 9) == 2.0
    assert interpolate({1: 2.0, 2: 1.0}, 9) == 1.0  # noise that falls is no gift


def test_costs_grow_with_the_context():
    """Linear between and beyond the two contexts that were measured, by size; corrections apply to the whole."""
    slopes = {"verify": {1: 0.001, 9: 0.003}, "draft": {1: 0.0005}}
    costs = LatencyModel({1: 1.0, 9: 2.0}, {1: 0.5}, slopes, 100).fresh()
    assert (costs.verify(1), costs.draft(1)) == (1.0, 0.5)
    costs.context = 1100
    assert costs.verify(1) == pytest.approx(2) and costs.verify(5) == pytest.approx(3.5)
    assert costs.draft(1) == pytest.approx(1) and costs.draft(0) == 0
    costs.close(1, 9)
    costs.laps = {"verify": 5.0, "draft": 1.0}  # just as expected
    costs.correct()
    assert costs.experience.costs["verify"] == pytest.approx(1)


def test_costs_follow_what_rounds_take():
    costs = LatencyModel({1: 1.0, 8: 2.0}, {1: 0.5, 4: 1.0})
    for _ in range(60):
        costs.close(1, 8)
        costs.laps = {"verify": 4.0, "draft": 0.5, "assemble": 0.2, "commit": 0.1}
        took = costs.correct()
    assert took == pytest.approx(4.8, rel=0.01)
    assert costs.verify(8) == pytest.approx(4, rel=0.01) and costs.verify(1) == pytest.approx(2, rel=0.01)
    assert costs.draft(4) == pytest.approx(1, rel=0.01)
    assert costs.round(1, 8) == pytest.approx(4.8, rel=0.01)  # making and learning from a tree takes 0.3 more
    assert costs.round(0, 1) == pytest.approx(2, rel=0.01)
    costs.close(1, 8)
    costs.laps = {"verify": 4000.0}  # the machine slept
    costs.correct()
    assert costs.verify(8) < 6


def test_one_stall_in_making_a_trie_is_no_more_than_an_outlier():
    """Its seconds count in rounds with a tree only: believed, they would be the last ones."""
    costs = LatencyModel({1: 1.0, 8: 2.0}, {1: 0.5})
    pass_ = costs.verify(8)
    for stall, most in ((9000.0, pass_), (0.1, pass_), (9000.0, 1.31 * pass_), (-9000.0, 1.31 * pass_)):
        costs.close(0, 8)
        costs.laps = {"verify": costs.verify(8), "commit": stall}
        costs.correct()
        assert 0 < costs.experience.costs["overhead"] <= most


def test_costs_stay_above_nothing():
    """Whatever the noise of two contexts makes of their difference, and a clock of its ticks."""
    costs = LatencyModel(
        {1: 1.0, 9: 2.0}, {1: 0.0}, {"verify": {1: 0.5, 9: 0.5}, "draft": {1: 0.0}}, 64
    ).fresh()
    costs.context = 3  # 61 tokens before what was measured
    assert 0 < costs.verify(1) < costs.verify(9) < 2 and costs.draft(1) > 0
    costs.close(1, 9)
    costs.laps = {"verify": 0.0, "draft": 1.0}
    costs.correct()
    planner = RoundPlanner(costs)
    planner.choose([1.0, 0.5], 3)
    assert 0 < planner.throughput < float("inf")


def test_a_flat_curve_takes_all_and_a_steep_one_little():
    values = [1.0, *(0.8**node for node in range(1, 40))]
    assert LatencyModel(FLAT, FLAT).best_size(values, 1.0)[1] == 40
    assert LatencyModel(STEEP, FLAT).best_size(values, 1.0) == (0.0, 1)  # worth what plain decoding is
    assert 2 < LatencyModel({1: 1.0, 64: 4.0}, FLAT).best_size(values, 1.0)[1] < 40
    assert (
        LatencyModel(FLAT, FLAT).best_size(values, 0.1)[0]
        > LatencyModel(FLAT, FLAT).best_size(values, 1.0)[0]
    )


@pytest.mark.parametrize("slope", [0.002, 0.02, 0.2])
@pytest.mark.parametrize("most", [1, 5, 40, 64])
@pytest.mark.parametrize("made", [False, True])
def test_a_trie_grows_as_far_as_it_can_pay(slope, made, most):
    """The best size is the same as if it had grown to the end, behind a step, a level and a slope, and most of it never
    grew.
    """
    rng, looked_at = random.Random(0), 0
    for _ in range(50):
        curve = {1: 1.0, 2: 1.0 + 4 * slope, 8: 1.0 + 4 * slope, 64: 1.0 + 60 * slope}
        slopes = {"verify": {1: 0.0, 64: 0.01 * slope}, "draft": {1: 0.0}}
        planner = RoundPlanner(LatencyModel(curve, {1: 0.2}, slopes, 64))
        planner.costs.context = rng.choice((64, 900))
        planner.came["draft"] *= rng.choice((0.5, 1.0, 2.0))
        planner.costs.experience.costs["overhead"] = rng.choice((0.0, 3 * slope))
        planner.took(rng.randint(1, 5), rng.uniform(0.5, 2.0))
        values = [1.0, *sorted((rng.random() ** 3 for _ in range(most - 1)), reverse=True)]
        growth = planner.growth("draft", most, made)
        grown = [1.0, *itertools.takewhile(growth.pays, values[1:])]
        assert planner.size(values, "draft", made) == planner.size(grown, "draft", made)
        looked_at += len(grown)
    assert slope < 0.2 or most < 64 or looked_at < 50 * 40


@pytest.mark.parametrize("slope", [0.0, 0.005, 0.02, 0.1, 0.5])
def test_the_choice_is_within_five_percent_of_the_best_fixed_size(slope):
    """Rounds replayed: their true acceptance is drawn from the values, the best fixed size is found afterwards."""
    rng = random.Random(1)
    costs = LatencyModel({1: 1.0, 64: 1.0 + 63 * slope}, {1: 0.2, 8: 0.4})
    rounds = []
    for _ in range(400):
        sure = rng.betavariate(2, 2)
        rounds.append([sure**depth * 0.9**place for place, depth in enumerate(range(33))])

    def speed(sizes):
        # a node at depth d of a chain is accepted when a uniform draw lies below its value
        draws = random.Random(2)
        tokens = seconds = 0.0
        for values, size in zip(rounds, sizes, strict=True):
            luck = draws.random()
            tokens += sum(luck < value for value in values[:size])
            seconds += costs.round(1, size)
        return tokens / seconds

    planner, sizes = RoundPlanner(costs), []
    for values in rounds:
        sizes.append(costs.best_size(values, planner.throughput)[1])
        planner.took(sum(values[: sizes[-1]]), costs.round(1, sizes[-1]))
    assert speed(sizes) >= 0.95 * max(speed([size] * len(rounds)) for size in range(1, 34))


def played(planner: RoundPlanner, rounds: int, gain: float, shifted: float, known: float) -> list[Plan]:
    """Plans of rounds in which a draft adds `gain` tokens and shifted blocks `shifted`."""
    plans = []
    for _ in range(rounds):
        values = [1.0, *(known / 8 for _ in range(8))]
        plan = planner.choose(values, 3)
        added = gain * (plan.blocks > 0)
        tokens = 1 if plan.name == "plain" else 1 + known + added + shifted * (plan.blocks > 1)
        predicted = 1 if plan.name == "plain" else 1 + known + added
        net = planner.size(values, "lookup")[0]
        planner.learn(plan, net, net + added, predicted, round(tokens), shifted)
        planner.took(round(tokens), planner.costs.round(plan.blocks, 1 if plan.name == "plain" else 9))
        plans.append(plan)
    return plans


def shares(plans: list[Plan]) -> dict[str, float]:
    return {name: sum(plan.name == name for plan in plans) / len(plans) for name in {p.name for p in plans}}


def cheap() -> LatencyModel:
    return LatencyModel({1: 1.0, 64: 1.6}, {1: 0.2, 4: 0.25})


def test_what_pays_is_drafted():
    assert shares(played(RoundPlanner(cheap()), 300, gain=2.0, shifted=0.0, known=0.5))["baseline"] > 0.8
    assert shares(played(RoundPlanner(cheap()), 300, gain=2.0, shifted=1.0, known=0.5))["shifted"] > 0.8


def test_a_useless_drafter_is_left_alone_and_tried_again():
    plans = played(RoundPlanner(cheap()), 400, gain=0.0, shifted=0.0, known=1.0)
    assert {plan.name for plan in plans[100:] if plan.why != "probe"} == {"lookup"}
    probes = [place for place, plan in enumerate(plans) if plan.why == "probe"]
    gaps = [b - a for a, b in zip(probes, probes[1:], strict=False)]
    assert probes and max(gaps) <= cheap().draft(MAX_PROBE_BLOCKS) / PROBE_TIME_SHARE + 2


def test_probes_that_fail_take_little_of_the_time():
    """However dear drafts are; a probe has few blocks, whatever there could be."""
    costs = LatencyModel({1: 1.0, 64: 1.6}, {1: 0.5, 4: 2.0, 8: 4.0})
    plans = played(RoundPlanner(costs), 2000, gain=0.0, shifted=0.0, known=0.0)[400:]
    probes = [plan for plan in plans if plan.why == "probe"]
    assert {plan.name for plan in probes} == {"baseline", "shifted"}
    assert max(plan.blocks for plan in probes) <= MAX_PROBE_BLOCKS
    assert sum(costs.draft(plan.blocks) for plan in probes) < 2.1 * PROBE_TIME_SHARE * len(plans)


def test_where_nothing_pays_it_decodes_plainly_and_probes():
    plans = played(
        RoundPlanner(LatencyModel(STEEP, {1: 5.0, 4: 20.0})), 600, gain=0.1, shifted=0.0, known=0.1
    )
    assert shares(plans[100:])["plain"] > 0.9
    assert any(plan.why == "probe" for plan in plans[200:])


def test_it_comes_back_when_drafting_pays_again():
    planner = RoundPlanner(cheap())
    played(planner, 300, gain=0.0, shifted=0.0, known=0.3)
    assert shares(played(planner, 400, gain=3.0, shifted=0.0, known=0.3)[250:])["baseline"] > 0.7


def test_it_comes_back_when_tries_were_held_too_dear():
    """What making one takes is seen only with one: a probe verifies what it made, if it is worth the pass."""
    costs, drafts = cheap(), [0.9, 0.8, 0.7]
    costs.experience.costs["overhead"] = 10.0
    planner, plans = RoundPlanner(costs), []
    for _ in range(1500):
        auto = auto_proposer([1, 2, 3], 64, costs)
        auto.planner, planner.costs.context = planner, 0
        draft = Draft(
            (0,), [[3, 7, 8, 9]], torch.tensor([[[7], [8], [9]]]), torch.tensor([drafts]).log()[..., None]
        )
        plans.append(auto.plan(0, 9))
        given = draft if plans[-1].blocks else Draft((), [[3]])
        nodes = len(auto.assemble(given, Retained(), 9))
        planner.learn(plans[-1], auto.known, auto.drafted, nodes, nodes, 0)
        costs.close(plans[-1].blocks, nodes)
        costs.laps = {"verify": costs.as_measured("verify", nodes), "assemble": 0.1}
        planner.took(nodes, costs.correct())
    assert shares(plans[20:100])["plain"] > 0.8 and shares(plans[-200:])["baseline"] > 0.8


def replayed(costs: LatencyModel, gains: dict[str, float], rounds: int = 3000) -> tuple[float, float]:
    """Tokens a second of the later half, as the planner chose blocks and nodes, and of the best fixed choice. gains:
    tokens that the nodes of each kind give, spread over its nodes.
    """
    rng, planner, tokens, seconds = random.Random(0), RoundPlanner(costs), 0.0, 0.0
    nodes_of = {"lookup": 8, "baseline": 4, "shifted": 4}

    def offered(blocks: int) -> list[float]:
        kinds = ["lookup", *["baseline"] * (blocks > 0), *["shifted"] * (blocks > 1)]
        each = [gains[kind] / nodes_of[kind] for kind in kinds for _ in range(nodes_of[kind])]
        return [1.0, *sorted(each, reverse=True)]

    def luck(values: list[float]) -> int:
        return 1 + sum(rng.random() < value for value in values[1:])

    for place in range(rounds):
        plan = planner.choose(offered(0), 3)
        known = planner.size(offered(0), "lookup")[0]
        values = [1.0] if plan.name == "plain" else offered(plan.blocks)
        kind = "draft" if plan.blocks else "lookup"
        drafted, size = planner.size(values, kind)
        came, took = luck(values[:size]), costs.round(plan.blocks, size)
        shifted = luck([1.0, *[gains["shifted"] / 4] * 4]) - 1 if plan.blocks > 1 else 0
        planner.learn(plan, known, drafted, sum(values[:size]), came, min(shifted, came - 1))
        planner.took(came, took)
        if place >= rounds // 2:
            tokens, seconds = tokens + sum(values[:size]), seconds + took
    choices = [(blocks, size) for blocks in (0, 1, 4) for size in range(1, len(offered(blocks)) + 1)]
    return tokens / seconds, max(
        sum(offered(blocks)[:size]) / costs.round(blocks, size) for blocks, size in choices
    )


@pytest.mark.parametrize(
    "verify, draft",
    [
        ({1: 1.0, 64: 1.6}, {1: 0.2, 4: 0.25}),
        (FLAT, {1: 0.3, 4: 0.9}),
        (FLAT, {1: 0.9, 4: 1.0}),
        ({1: 1.0, 64: 4.0}, {1: 0.1, 4: 0.15}),
        (STEEP, {1: 5.0, 4: 20.0}),
    ],
)
@pytest.mark.parametrize(
    "gains",
    [
        (0.5, 2, 0),
        (0.5, 2, 1),
        (1, 0, 0),
        (0.1, 0.1, 0),
        (0.3, 0.25, 0.1),
        (0, 3, 0.2),
        (2, 0.5, 0),
        (0.5, 0, 1),
    ],
    ids=str,
)
def test_plans_are_within_five_percent_of_the_best_fixed_one(verify, draft, gains):
    """But for a useless and cheap draft beside a text that repeats: what is known is trusted as in rounds without a
    draft, of which there are none, and the difference pays for the draft.
    """
    chosen, best = replayed(
        LatencyModel(verify, draft), dict(zip(("lookup", "baseline", "shifted"), gains, strict=True))
    )
    overpaid = gains == (1, 0, 0) and draft[1] == 0.1
    assert chosen >= (0.92 if overpaid else 0.95) * best


def test_rounds_that_were_slow_do_not_make_a_dear_draft_pay():
    """It is measured against plain decoding at least, which could be had instead; faster rounds raise the bar."""
    planner = RoundPlanner(LatencyModel({1: 1.0}, {1: 3.0}))  # a draft is thought to give one token
    for _ in range(100):
        planner.took(1, 10.0)
    assert planner.throughput == 1.0 and planner.choose([1.0], 0).name == "plain"
    for _ in range(100):
        planner.took(3, 1.0)
    assert planner.throughput == pytest.approx(3, rel=0.1)


def test_the_next_decode_begins_where_the_last_one_ended():
    """A drafter found useless is not tried for long again; one that paid is used at once. Rounds stay apart."""
    costs = cheap()
    played(RoundPlanner(costs), 300, gain=0.0, shifted=0.0, known=1.0)
    again = played(RoundPlanner(costs.fresh()), 8, gain=0.0, shifted=0.0, known=1.0)
    assert {plan.name for plan in again if plan.why != "probe"} == {"lookup"}
    paying = cheap()
    played(RoundPlanner(paying), 100, gain=2.0, shifted=0.0, known=0.1)
    assert played(RoundPlanner(paying.fresh()), 1, gain=2.0, shifted=0.0, known=0.1)[0].name == "baseline"
    paying.laps["verify"] = 1.0
    assert not paying.fresh().laps


def test_probes_begin_soon():
    planner = RoundPlanner(LatencyModel(STEEP, {1: 5.0, 4: 20.0}))
    plans = played(planner, 10 * PROBE_INTERVAL, gain=0.1, shifted=0.0, known=0.1)
    assert any(plan.why == "probe" for plan in plans)
