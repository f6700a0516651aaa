"""Several processes learn what one learns."""

from __future__ import annotations

import json
import os
import signal
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


HURRIED = """
import os, time, types
import reanchor.training.trainer as trainer
if os.environ["RANK"] == "1":
    trainer.time = types.SimpleNamespace(monotonic=lambda: 1000 * time.monotonic())
from reanchor_cli.main import main
main()
"""


def together(command):
    """What a launcher and its processes say; none of them is left behind."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as launcher:
        try:
            told, complaint = launcher.communicate(timeout=150)
        except subprocess.TimeoutExpired:
            os.killpg(launcher.pid, signal.SIGTERM)  # which a launcher passes on
            raise
    assert launcher.returncode == 0, complaint
    return told


@pytest.fixture
def launched(tmp_path):
    """What `count` processes log of a run, step by step."""
    planted.planted_target().save_pretrained(tmp_path / "target")
    texts = planted.write_texts(tmp_path / "responses.jsonl", 28)
    start = planted.write_drafter(tmp_path / "start")

    def run(count, *program, **changes):
        out = tmp_path / f"run{count}"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", count]
        command += ["--standalone", *program, "train", "carryover", "--target", tmp_path / "target"]
        command += ["--responses", texts, "--init", start, "--out", out]
        command += [each for pair in (SETTINGS | changes).items() for each in pair]
        told = together([str(each) for each in command])
        assert told.split() == [str(out / "drafter")]
        records = map(json.loads, (out / "log.jsonl").read_text().splitlines())
        return [record for record in records if "loss" in record]

    return run


@pytest.mark.slow
def test_two_processes_learn_what_one_does(launched):
    logs = [launched(count, "-m", "reanchor_cli") for count in (1, 2)]
    assert len(logs[0]) == len(logs[1]) == 6
    for one, other in zip(*logs, strict=True):
        for name in ("loss", "norm", "tokens_a_round", "first_draft"):
            assert one[name] == pytest.approx(other[name], rel=1e-4)


@pytest.mark.slow
def test_clocks_apart_do_not_part_processes(launched, tmp_path):
    """The second finds a checkpoint due after a thousandth of the minutes."""
    (tmp_path / "hurried.py").write_text(HURRIED)
    steps = launched(2, tmp_path / "hurried.py", **{"--save-every": 1.0, "--minutes": 9.0})
    assert len(steps) == 6
    kept = [path.name for path in (tmp_path / "run2" / "checkpoints").iterdir()]
    assert kept == ["step-0000006"]
