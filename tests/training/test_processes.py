"""Several processes learn what one learns."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.training import planted

SETTINGS = {
    "--epochs": 1,
    "--batch": 4,
    "--anchors": 6,
    "--precision": "no",
    "--held-out": 4,
    "--probe": 2,
    "--decode-prompts": 1,
    "--decode-tokens": 8,
    "--dtype": "float32",
    "--device": "cpu",
}


@pytest.mark.slow
def test_two_processes_learn_what_one_does(tmp_path):
    planted.planted_target().save_pretrained(tmp_path / "target")
    texts = planted.write_texts(tmp_path / "responses.jsonl", 28)
    start = planted.write_drafter(tmp_path / "start")
    logs = []
    for count in (1, 2):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc_per_node",
            count,
            "--master_port",
            29571,
        ]
        command += ["-m", "reanchor_cli", "train", "carryover", "--target", tmp_path / "target"]
        command += ["--responses", texts, "--init", start, "--out", tmp_path / str(count)]
        command += [each for pair in SETTINGS.items() for each in pair]
        done = subprocess.run([str(each) for each in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / str(count) / "log.jsonl").read_text().splitlines()
        logs.append([record for record in map(json.loads, lines) if "loss" in record])
    assert len(logs[0]) == len(logs[1]) == 6
    for one, other in zip(*logs, strict=True):
        for name in ("loss", "norm", "tokens_a_round", "first_draft"):
            assert one[name] == pytest.approx(other[name], rel=1e-4)
