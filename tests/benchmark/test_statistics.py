"""tau against sums by hand, intervals that cover, a paired test that is right as often as it says."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from reanchor.benchmark.aggregation import ALL, cells
from reanchor.benchmark.bootstrap import paired_p_value, ratio_interval, speedup_interval
from reanchor.benchmark.comparison import contrasts
from reanchor.benchmark.gate import Difference
from reanchor.benchmark.results import Results
from reanchor_cli.progress import Progress
from reanchor_cli.scoreboard import chance, contrast_grid, detail_grid
from tests.benchmark.scripted import outcome_of, record_of

PLAIN = {"hf": 0.4, "plain": 0.2}


def run(*, draft_seconds: float = 0.3, lengths=((3, 1, 2), (4, 4)), dataset: str = "own", **more):
    """Two prompts, drafted in the given rounds; plain decoding takes a round a token."""
    records = []
    for index, each in enumerate(lengths):
        count = sum(each)
        plain = {name: outcome_of([1] * count, seconds) for name, seconds in PLAIN.items()}
        outcomes = {**plain, "dflash": outcome_of(list(each), draft_seconds)}
        records.append(record_of(dataset, f"p{index}", **outcomes, **more))
    return records


def by_method(found):
    return {each.method: each for each in found}


def test_tau_and_speed_by_hand():
    cell = by_method(cells(run()))["dflash"]
    assert cell.tau == 14 / 5  # 6 tokens in 3 rounds and 8 in 2: rounds are weighed alike, not prompts
    assert cell.tokens == 14 + 2 and cell.rounds == 5
    assert cell.plain == "plain"  # the faster of the two
    assert cell.speedup == pytest.approx((14 * 0.2) / (5 * 0.3))
    assert cell.tokens_per_second == pytest.approx(14 / 1.5)
    assert cell.histogram == {1: 1, 2: 1, 3: 1, 4: 2}
    assert cell.full_rounds == 2 / 5  # of blocks of three drafts
    # round depths are 3; accepted 2, 0, 1, 3, 3
    assert cell.position_rates == pytest.approx([4 / 5, 3 / 4, 2 / 3])
    assert cell.stage_seconds["verify"] == pytest.approx(1.5)


def test_the_paper_s_full_rounds_stand_beside_greedy_decoding_only():
    for temperature in (0.0, 1.0):
        found = cells(run(dataset="math500", temperature=temperature))
        assert ("16.4" in detail_grid(found, "math500", temperature).title) == (temperature == 0)


def test_datasets_together_come_last_and_pool_their_rounds():
    found = cells(run() + run(dataset="other", lengths=((1,),)))
    assert found[-1].dataset == ALL
    assert by_method([each for each in found if each.dataset == ALL])["dflash"].tau == 15 / 6


def test_a_fault_takes_the_speed_away_and_a_tie_does_not():
    records = run()
    for fault in (False, True):
        records[0].differences[:] = [Difference("dflash", 0, 2, 0.01, 0.01, 0.02, fault)]
        cell = by_method(cells(records))["dflash"]
        assert (cell.ties, cell.faults) == (not fault, fault)
        assert (cell.speedup is None) == fault


def faulted(records, method):
    records[0].differences.append(Difference(method, 0, 2, 0.5, 0.5, None, True))
    return records


def test_plain_decoding_with_a_fault_is_no_baseline():
    """The faster of the two would be `plain`."""
    cell = by_method(cells(faulted(run(), "plain")))["dflash"]
    assert cell.plain == "hf" and cell.speedup == pytest.approx((14 * 0.4) / (5 * 0.3))
    cell = by_method(cells(faulted(faulted(run(), "plain"), "hf")))["dflash"]
    assert cell.plain is None and cell.speedup is None and cell.tau == 14 / 5


@pytest.mark.parametrize("first", [False, True])
def test_no_speed_of_a_faulted_method_is_compared(first):
    sides = [run(), faulted(run(), "dflash")]
    found = contrasts(*reversed(sides)) if first else contrasts(*sides)
    dflash = by_method(found)["dflash"]
    assert dflash.faults == ((1, 0) if first else (0, 1))
    assert dflash.speed_ratio is dflash.speed_p is dflash.speedups is dflash.speedup_p is None
    assert dflash.taus == (14 / 5, 14 / 5)
    assert by_method(found)["plain"].speedups == (1.0, 1.0)
    row = next(row for row in contrast_grid(found, ("a", "b")).rows if "dflash" in row[0])
    assert row[4:] == ["–", "–", "1 fault", "–"]


def test_no_speed_up_over_a_faulted_baseline_is_compared():
    both = faulted(faulted(run(), "plain"), "hf")
    dflash = by_method(contrasts(both, run()))["dflash"]
    assert dflash.speedups is None and dflash.speed_ratio == 1.0


def test_without_plain_decoding_there_is_no_speed_up():
    (cell,) = cells([record_of(dflash=outcome_of([2, 2]))])
    assert cell.speedup is None and cell.tau == 2


def test_one_prompt_has_no_interval_and_an_answer_of_one_token_no_tau():
    (cell,) = cells([record_of(dflash=outcome_of([2, 2]))])
    assert cell.tau_interval is None
    (cell,) = cells([record_of(dflash=outcome_of([]))])
    assert cell.tau is None and cell.tokens == 1


def test_intervals_cover():
    """Prompts of a known mean: about 95 of 100 intervals hold it. Three standard errors are allowed."""
    random, trials, covered = np.random.default_rng(1), 200, 0
    for trial in range(trials):
        rounds = random.integers(20, 40, 60)
        tokens = [random.poisson(1.5, count).sum() + count for count in rounds]  # tau 2.5
        low, high = ratio_interval(tokens, rounds, seed=trial)
        covered += low <= 2.5 <= high
    assert abs(covered / trials - 0.95) < 3 * math.sqrt(0.95 * 0.05 / trials)


def test_the_speed_interval_pairs_prompts():
    """A prompt that is slow for both sides says nothing about their ratio."""
    seconds = np.random.default_rng(2).lognormal(0, 2, 50)
    tokens = np.full(50, 100.0)
    low, high = speedup_interval(2 * seconds, tokens, seconds, tokens)
    assert low == pytest.approx(2) and high == pytest.approx(2)


def test_the_paired_test_rejects_as_often_as_it_says_and_finds_a_difference():
    random = np.random.default_rng(3)
    false = sum(paired_p_value(random.normal(0, 1, 20), seed) < 0.05 for seed in range(300))
    assert abs(false / 300 - 0.05) < 3 * math.sqrt(0.05 * 0.95 / 300)
    assert paired_p_value(random.normal(1, 1, 20)) < 0.01
    assert paired_p_value([1.0, 2.0, 3.0]) == 2 / 8  # all signs gone through
    assert paired_p_value([]) == paired_p_value([0.0, 0.0]) == 1.0


def test_without_scipy_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(ValueError, match=r"needs scipy: pip install 'reanchor-decoding\[bench\]'"):
        paired_p_value([1.0, 2.0])
    assert paired_p_value([1.0]) == 1.0  # one prompt tells nothing


def test_two_runs_by_hand():
    first, second = run(draft_seconds=0.3), run(draft_seconds=0.15, lengths=((3, 3), (4, 4)))
    found = {each.method: each for each in contrasts(first, second[:1])}
    dflash = found["dflash"]
    assert dflash.prompts == 1 and dflash.taus == (2.0, 3.0)
    assert dflash.speed_ratio == pytest.approx((6 / 0.3) / (6 / 0.9))
    assert dflash.speedups == pytest.approx((6 * 0.2 / 0.9, 6 * 0.2 / 0.3))
    assert found["plain"].speed_ratio == 1.0
    slow, fast = (
        [replace(run(draft_seconds=each)[0], id=f"p{at}") for at in range(9)] for each in (0.3, 0.1)
    )
    assert {each.method: each for each in contrasts(slow, fast)}["dflash"].speed_p < 0.01


def test_runs_with_nothing_in_common_are_not_compared():
    with pytest.raises(ValueError, match="no prompt in common"):
        contrasts(run(), run(dataset="other"))


def test_the_progress_line_shows_the_same_figures(tmp_path):
    records = run()
    shown = Progress(2, Results(tmp_path / "r.jsonl", {}, records[:1]))
    shown.add(records[1])
    assert shown.so_far() == [f"dflash τ {14 / 5:.2f} {14 * 0.2 / (5 * 0.3):.2f}×"]


def test_no_p_value_is_shown_as_zero():
    assert [chance(p) for p in (None, 1.0, 0.0126, 0.0005, 0.0001)] == [
        "–",
        "1.000",
        "0.013",
        "0.001",
        "<0.001",
    ]
