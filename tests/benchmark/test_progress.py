"""The bar of a long run stays on a narrow terminal, with figures that may be believed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from reanchor.benchmark.gate import Difference
from reanchor.benchmark.results import Results
from reanchor_cli import console, progress
from reanchor_cli.progress import Progress
from tests.benchmark.scripted import outcome_of, record_of

METHODS = ("dflash", "reanchor", "ddtree", "auto", "carryover", "carryover-reanchor", "prompt-lookup")


def record(id: str, *faults: str):
    drafted = {method: outcome_of([3, 1, 2], 0.3) for method in METHODS}
    made = record_of(id=id, hf=outcome_of([1] * 6, 0.4), plain=outcome_of([1] * 6, 0.2), **drafted)
    made.differences.extend(Difference(method, 0, 2, 0.5, 0.5, 0.1, True) for method in faults)
    return made


def test_a_method_with_faults_has_no_speed_up(tmp_path):
    said = Progress(
        2, Results(tmp_path / "r.jsonl", {}, [record("p0", "dflash"), record("p1", "dflash")])
    ).so_far()
    assert said[0] == "dflash τ 2.00 2 faults" and said[1].endswith("×")


def test_plain_decoding_with_a_fault_is_no_baseline(tmp_path):
    said = Progress(1, Results(tmp_path / "r.jsonl", {}, [record("p0", "plain")])).so_far()
    assert said[0] == f"dflash τ 2.00 {6 * 0.4 / (3 * 0.3):.2f}×"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_bar_and_time_left_stay_on_any_terminal(tmp_path, monkeypatch, width):
    paper = io.StringIO()
    monkeypatch.setattr(
        progress, "console", Console(file=paper, force_terminal=True, width=width, no_color=True)
    )
    with Progress(2, Results(tmp_path / "r.jsonl", {}, [record("p0")])):
        pass
    text = paper.getvalue()
    assert "1/2 prompts" in text and "━━━" in text and "-:--:--" in text
    assert all(f"{method} τ 2.00 1.33×" in text for method in METHODS)


def test_a_difference_is_one_line_of_the_log(monkeypatch):
    paper = io.StringIO()
    monkeypatch.setattr(console, "console", Console(file=paper, width=80, highlight=False))
    difference = Difference("carryover-reanchor", 0, 123, 0.12345, 0.12345, 0.012345, True)
    console.say(f"livecodebench a-prompt-with-a-long-name: {difference}")
    (line,) = paper.getvalue().splitlines()
    assert "gap 0.123, loss 0.123, noise 0.0123" in line and line.endswith(": fault")
