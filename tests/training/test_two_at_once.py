"""One run at a time writes a folder of training or a file of responses; options out of reason are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reanchor.lock import locked
from reanchor_cli.main import main
from tests.checkpoints import write_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("two") / "target")


def train(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["train", *map(str, arguments)])


def refused(result: Result, *said: str) -> None:
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), repr(result.exception)
    for each in said:
        assert each in " ".join(result.output.split()), result.output


def test_a_second_recording_waits_for_its_turn(target, tmp_path):
    out, prompts = tmp_path / "r.jsonl", tmp_path / "p.jsonl"
    prompts.write_text('{"turns": ["Hi"]}\n')
    arguments = ("responses", "--target", target, "--device", "cpu", "--prompts", prompts, "--out", out)
    with locked(out):
        refused(train(*arguments), "another run is writing", "give another --out")
    assert out.read_text() == ""


def test_a_second_training_waits_for_its_turn(target, tmp_path):
    out, responses = tmp_path / "run", tmp_path / "r.jsonl"
    responses.write_text('{"key": "a", "prompt_ids": [1], "response_ids": [2, 3]}\n')
    arguments = ("drafter", "--target", target, "--device", "cpu", "--responses", responses, "--out", out)
    with locked(out / ".lock"):
        refused(train(*arguments), "another run is writing", "give another --out")


def test_nothing_to_resume(target, tmp_path):
    responses = tmp_path / "r.jsonl"
    responses.write_text('{"key": "a", "prompt_ids": [1], "response_ids": [2, 3]}\n')
    arguments = (
        "drafter",
        "--target",
        target,
        "--device",
        "cpu",
        "--responses",
        responses,
        "--out",
        tmp_path / "no",
    )
    refused(train(*arguments, "--resume"), "--resume", "holds no checkpoint to go on from")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--block-size", 1),
        ("--markov-rank", -1),
        ("--save-every", -1),
        ("--evaluate-every", -0.5),
        ("--epochs", 0),
    ],
)
def test_numbers_out_of_reason(tmp_path, option, value):
    name = option.removeprefix("--").replace("-", "_")
    refused(train("drafter", "--responses", tmp_path, "--out", tmp_path, option, value), f"{name} must be")
