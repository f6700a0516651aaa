"""Tables of made-up runs: whole numbers at every width, and what each says of faults, means and budgets."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from reanchor.benchmark.sweep import parse
from reanchor_cli.data_table import DataTable
from reanchor_cli.output import emit
from reanchor_cli.scoreboard import grids
from tests.benchmark.runs import ROUNDS, ablated, fault, record, results

SETS = (
    "gsm8k",
    "math500",
    "aime25",
    "humaneval",
    "mbpp",
    "livecodebench",
    "mt_bench",
    "alpaca",
    "spec_bench",
)
METHODS = ("hf", "plain", "dflash", "reanchor", "ddtree", "auto", "carryover-reanchor")


def printed(shown: Sequence[DataTable], width: int, screen: bool = True) -> str:
    paper = io.StringIO()
    console = Console(file=paper, width=width)
    for grid in shown:
        for part in grid.rich(width, screen):
            console.print(part)
    return paper.getvalue()


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_number_is_cut_at_any_width(width):
    records = [record(METHODS, dataset=name, id=f"p{at}") for name in SETS for at in range(2)]
    main, *details = grids(results(records))
    text = printed([main], width)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert len(re.findall(r"2\.00 / 1\.33×(?!\d)", text)) == (len(SETS) + 1) * (len(METHODS) - 2)
    assert text.count("carryover-reanchor") == text.count("method")  # every part says which row is whose
    assert "…" not in printed(details, width)
    if width == 100:
        assert text.count("method") == 2


def test_tables_of_several_files_say_whose_they_are(capsys):
    runs = [replace(results([record(METHODS)]), path=Path(name)) for name in ("r.jsonl", "s.jsonl")]
    emit(runs, "markdown", None)
    both = capsys.readouterr().out
    emit(runs[:1], "markdown", None)
    assert all(f"{name}: Qwen/Qwen3-4B" in both for name in ("r.jsonl", "s.jsonl"))
    assert "r.jsonl:" not in capsys.readouterr().out


def test_intervals_stand_in_the_details():
    main, detail = grids(
        results([record(METHODS, lengths, id=f"p{at}") for at, lengths in enumerate(((3, 1), (2, 2, 4)))])
    )
    assert "±" not in main.markdown() and "±" in detail.markdown()


def test_every_difference_is_listed_and_only_a_screen_is_spared():
    records = [record(METHODS, id=f"p{at}") for at in range(30)]
    for each in records:
        each.differences.append(fault("dflash", kind=each.id == "p29"))
    listed = grids(results(records))[-1]
    assert listed.title.startswith("30 outputs that differ from plain decoding: 29 ties, 1 faults")
    assert listed.rows[0] == ["own p29", "dflash", "1", "2", "0.123", "0.456", "0.0789", "fault"]
    assert listed.markdown().count("| tie |") == 29
    spared = printed([listed], 100)
    assert spared.count(" tie\n") == 19 and "… and 10 more rows" in spared
    assert "more rows" not in printed([listed], 100, screen=False)


def test_means_are_of_one_temperature_and_the_best_is_bold():
    warm = dict.fromkeys(ROUNDS, (1, 1, 1, 1))
    records = [ablated(at, name, **({} if at == 0 else warm)) for at in (0.0, 1.0) for name in ("a", "b")]
    cold, hot, *_ = grids(results(records, ablation="scope"))
    assert "T=0" in cold.title and "T=1" in hot.title
    assert [row[-1] for row in cold.rows] == ["0.00", "1.00", "0.33", "**3.00**"]
    assert {row[-1].strip("*") for row in hot.rows} == {"0.00"}
    assert cold.rows[3][1].startswith("**3.00** / **")


def test_the_papers_figure_stands_beside_the_mean_of_its_temperature_only():
    attach = dict.fromkeys(("fixed", "random", "longest", "earliest"), (2, 2))
    cold, hot, *_ = grids(results([ablated(at, "a", **attach) for at in (0.0, 1.0)], ablation="attach"))
    assert cold.columns[-2:] == ["mean", "paper"] and cold.rows[0][-1] == "7.24"
    assert hot.columns[-1] == "mean" and "7.24" not in hot.markdown()


def test_shares_show_the_counts_they_are_made_of():
    made = ablated(0.0, "a", **{"all sites": (2, 2)})
    made.turns[0]["all sites"].counts.update(groups=10, eligible=8, won=7)
    grid = grids(results([made], ablation="earliest"))[0]
    assert [row[1] for row in grid.rows] == ["87.5% (7/8)", "80.0% (8/10)"]


def test_a_sweep_says_faults_and_the_budget_that_ddtree_has():
    sweep = parse("max_nodes=8,64,none", ("ddtree", "auto"))
    names = [name for name, _, _ in sweep.runs()]
    assert names == [
        "ddtree max_nodes=8", "auto max_nodes=8", "ddtree max_nodes=64", "auto max_nodes=64", "auto max_nodes=none",
    ]  # fmt: skip
    made = record(("plain", *names))
    made.differences.extend([fault("auto max_nodes=8"), fault("ddtree max_nodes=64")])
    costs = {"context": 1, "verify": {"1": 1.0}, "draft": {"1": 1.0}}
    grid = grids(results([made], sweep=["max_nodes=8,64,none"], costs=costs))[1]
    assert [row[0] for row in grid.rows] == ["8", "64", "none"]
    assert [row[2] for row in grid.rows] == ["1.33×", "1 fault", "1 fault"]  # ddtree
    assert [row[6] for row in grid.rows] == ["1 fault", "1.33×", "1.33×"]  # auto
    assert "64 nodes" in grid.notes[0] and "–×" not in grid.markdown()
