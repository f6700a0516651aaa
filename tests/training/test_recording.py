"""Recorded responses are the target's own whatever stands beside them in a batch, and runs go on where they ended."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import SafetensorError

from reanchor.target import Target
from reanchor.training.feature_store import FeatureStore
from reanchor.training.record_config import RecordConfig
from reanchor.training.recording import PendingPrompt, answered, record
from reanchor.training.responses import read_responses
from tests.tiny import VOCAB, greedy, tiny_target

PROMPTS = [[3, 14, 15], [9, 2, 6, 5, 3, 5, 8], [9], [7, 9, 3, 2]]
QUESTIONS = [PendingPrompt(f"set/{place}", "set", ids) for place, ids in enumerate(PROMPTS)]
CONFIG = RecordConfig(max_new_tokens=12, batch=3)


@pytest.fixture(scope="module")
def model():
    return tiny_target("qwen3", dtype=torch.float64)


def quiet(_message):
    pass


def test_every_response_is_what_the_target_answers_alone(model, tmp_path):
    said = []
    assert record(model, QUESTIONS, tmp_path / "out.jsonl", CONFIG, said.append) == 4
    found, unfinished = read_responses(tmp_path / "out.jsonl", VOCAB)
    assert unfinished == 0 and [list(each.prompt_ids) for each in found] == PROMPTS
    for each in found:
        assert list(each.response_ids) == greedy(model, torch.tensor(each.prompt_ids), 12)
    assert said[0].startswith("3/4 responses") and said[-1].endswith("tokens/s")


def test_a_response_ends_with_its_end_token(model, tmp_path):
    truth = greedy(model, torch.tensor(PROMPTS[0]), 12)
    model.generation_config.eos_token_id = truth[4]
    try:
        record(model, QUESTIONS, tmp_path / "out.jsonl", CONFIG, quiet)
    finally:
        model.generation_config.eos_token_id = None
    found, _ = read_responses(tmp_path / "out.jsonl", VOCAB)
    for each in found:
        whole = greedy(model, torch.tensor(each.prompt_ids), 12)
        end = whole.index(truth[4]) + 1 if truth[4] in whole else 12
        assert list(each.response_ids) == whole[:end]


def test_an_interrupted_run_goes_on(model, tmp_path):
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    record(model, QUESTIONS, whole, CONFIG, quiet)
    lines = whole.read_text().splitlines(True)
    parts.write_text("".join(lines[:2]) + lines[2][:20])  # killed in the third line
    assert record(model, QUESTIONS, parts, CONFIG, quiet) == 2
    assert parts.read_text() == whole.read_text()
    assert record(model, QUESTIONS, parts, CONFIG, quiet) == 0


def test_sampling_draws_from_the_target(model, tmp_path):
    config = RecordConfig(max_new_tokens=12, batch=4, temperature=1.0)
    for name in ("one", "two"):
        record(model, QUESTIONS, tmp_path / name, config, quiet)
    record(model, QUESTIONS, tmp_path / "greedy", CONFIG, quiet)
    texts = [(tmp_path / name).read_text() for name in ("one", "two", "greedy")]
    assert texts[0] == texts[1] != texts[2]


def test_other_files_are_left_alone(model, tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text('{"something": "else"}\n')
    with pytest.raises(ValueError, match="no file of responses"):
        answered(path)
    record(model, QUESTIONS, tmp_path / "mine.jsonl", CONFIG, quiet)
    with pytest.raises(ValueError, match="other prompts"):
        record(model, [PendingPrompt("other/1", "other", [1, 2])], tmp_path / "mine.jsonl", CONFIG, quiet)


def test_a_full_disk_says_what_to_do(model, tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ValueError, match="No space left on device.*same command again"):
        record(model, QUESTIONS, tmp_path / "out.jsonl", CONFIG, quiet)


def test_rows_hold_what_training_reads(model, tmp_path):
    record(model, QUESTIONS[:1], tmp_path / "out.jsonl", CONFIG, quiet)
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert row.keys() == {"key", "source", "prompt_ids", "response_ids"} and row["key"] == "set/0"


def test_features_are_kept_as_training_reads_them(model, tmp_path):
    """Those of a batch with padding, against a pass over each text alone; the last token was never read."""
    config = RecordConfig(max_new_tokens=12, batch=3, taps="0,1")
    record(model, QUESTIONS, tmp_path / "out.jsonl", config, quiet, tmp_path / "kept")
    found, _ = read_responses(tmp_path / "out.jsonl", VOCAB)
    target = Target(model, (0, 1))
    kept, alone = FeatureStore(target, tmp_path / "kept"), FeatureStore(target)
    assert len(list((tmp_path / "kept").glob("*.safetensors"))) == len(found)
    for each in found:
        torch.testing.assert_close(kept.features(each), alone.features(each)[:-1], rtol=0, atol=1e-12)


def test_what_cannot_be_kept_is_said(model, tmp_path):
    for taps, folder, reason in (("0,9", tmp_path, "outside"), ("0,1", None, "give --features")):
        with pytest.raises(ValueError, match=reason):
            record(model, QUESTIONS, tmp_path / "o.jsonl", RecordConfig(taps=taps), quiet, folder)
    with pytest.raises(ValueError, match="no folder .*nowhere.* make it first"):
        record(model, QUESTIONS, tmp_path / "nowhere" / "o.jsonl", CONFIG, quiet)
    assert not (tmp_path / "o.jsonl").exists()


def test_damaged_features(model, tmp_path):
    record(model, QUESTIONS[:1], tmp_path / "out.jsonl", CONFIG, quiet, tmp_path)
    teacher, (response,) = (
        FeatureStore(Target(model, (1,)), tmp_path),
        read_responses(tmp_path / "out.jsonl", VOCAB)[0],
    )
    teacher.keep(response, teacher.features(response))
    place = teacher.place(response)
    place.write_bytes(place.read_bytes()[:50])
    with pytest.raises(ValueError, match="cannot read the features .* remove the file"):
        teacher.features(response)


def test_features_without_room(model, tmp_path, monkeypatch):
    def full(_tensors, path):
        path.write_bytes(b"half")
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("reanchor.training.feature_store.save_file", full)
    with pytest.raises(ValueError, match="cannot keep features.*No space left"):
        record(model, QUESTIONS, tmp_path / "o.jsonl", CONFIG, quiet, tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir()) and not (tmp_path / "o.jsonl").exists()
