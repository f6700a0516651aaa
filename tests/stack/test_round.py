"""The benchmark of a round runs at a tiny shape and tells what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_of_a_round(tmp_path):
    file = tmp_path / "round.json"
    terms = [
        "--shape",
        "tiny",
        "--dtype",
        "float32",
        "--context",
        "20",
        "--widths",
        "1,16",
        "--blocks",
        "1,3",
    ]
    command = [
        sys.executable,
        "benchmarks/round.py",
        *terms,
        "--new",
        "13",
        "--repeats",
        "2",
        "--threads",
        "1",
    ]
    done = subprocess.run([*command, "--json", str(file)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())
    assert [row["nodes"] for row in figures["passes"]] == [1, 16]
    for row in figures["passes"]:
        assert row["largest_difference"] < 1e-5
        assert row["stacks"]["lean"]["operators"] < row["stacks"]["hf"]["operators"]
    assert [row["blocks"] for row in figures["drafts"]] == [1, 3]
    methods = {row["method"]: row for row in figures["rounds"]}
    assert set(methods) == {"HF generate", "plain", "dflash", "reanchor"}
    assert methods["plain"]["lean"]["tau"] == 1
    for method in ("dflash", "reanchor"):  # five drafts accepted and a bonus, whichever stack
        assert methods[method]["hf"]["tau"] == methods[method]["lean"]["tau"] == 6
        assert 0 < methods[method]["lean"]["outside"] < 1
        assert methods[method]["whole"]["ms_per_round"] > 0 and methods[method]["regions"]["whole_rounds"] > 0
    assert "hf/lean" in done.stdout and "generate/lean" in done.stdout
