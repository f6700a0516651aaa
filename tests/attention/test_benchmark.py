"""benchmarks/attention.py runs, reports what it could not run, and times nothing that is wrong."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from reanchor.attention.table import BACKENDS, Backend

FILE = Path(__file__).parents[2] / "benchmarks" / "attention.py"
SMALL = ["--device", "cpu", "--lengths", "20", "--nodes", "5", "--layouts", "SmolLM2-135M", "Gemma2-2B"]


def run(monkeypatch, tmp_path, *more):
    """Exit status and what --json wrote."""
    spec = importlib.util.spec_from_file_location("attention_benchmark", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "attention_benchmark", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.Clock, "copy_rate", lambda self: 1e9)
    monkeypatch.setattr(sys, "argv", ["attention.py", *SMALL, "--json", str(tmp_path / "out.json"), *more])
    with pytest.raises(SystemExit) as stop:
        module.main()
    return stop.value.code, json.loads((tmp_path / "out.json").read_text())


def test_every_method_is_timed_or_its_absence_explained(monkeypatch, tmp_path):
    status, written = run(monkeypatch, tmp_path)
    assert status == 0
    plain, capped = written["rows"]
    assert set(plain["milliseconds"]) == {"sdpa", "reference", "dense"}
    assert set(capped["milliseconds"]) == {"reference"} and "soft cap" in capped["absent"]["dense"]
    for row in (plain, capped):
        assert set(row["milliseconds"]) | set(row["absent"]) == {*BACKENDS, "dense", "flex", "xformers"}
        assert all(milliseconds > 0 for milliseconds in row["milliseconds"].values()) and not row["wrong"]
    assert plain["bytes"] == 2 * 25 * 3 * 64 * 4


def test_a_wrong_backend_is_not_timed_and_fails_the_run(monkeypatch, tmp_path):
    wrong = Backend("sdpa", lambda _: None, lambda given: torch.zeros_like(given.queries))
    monkeypatch.setitem(BACKENDS, "sdpa", wrong)
    status, written = run(monkeypatch, tmp_path)
    assert status == 1
    for row in written["rows"]:
        assert row["wrong"]["sdpa"] == pytest.approx(1.0) and "sdpa" not in row["milliseconds"]
