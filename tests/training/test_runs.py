"""Runs on disk: resumed exactly, stopped by what must stop them, and never left without a whole checkpoint."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from reanchor import DecodeConfig
from reanchor.drafters.load import load_drafter
from reanchor.training import checkpoints
from reanchor.training.drafter_shape import DrafterShape
from reanchor.training.evaluation import decoded
from reanchor.training.jobs import TrainingJob, train
from reanchor.training.responses import Response, read_responses, split
from reanchor.training.train_config import TrainConfig
from reanchor.training.trainer import Trainer
from tests.training import planted

MODEL = planted.planted_target()
SETTINGS = {
    "epochs": 1.0,
    "batch": 4,
    "anchors": 6,
    "precision": "no",
    "held_out": 4,
    "probe": 2,
    "decode_prompts": 1,
    "decode_tokens": 12,
    "evaluate_every": 1000.0,
    "save_every": 1000.0,
}


@pytest.fixture
def job(tmp_path):
    responses = planted.write_texts(tmp_path / "responses.jsonl", 28)
    start = planted.write_drafter(tmp_path / "start")

    def make(name="run", carryover=True, resume=False, **changes):
        config = TrainConfig(**(SETTINGS | changes))
        place = tmp_path / name
        return TrainingJob(
            responses, place, str(start), carryover, DrafterShape(), config, "planted", resume=resume
        )

    return make


def quiet(_message):
    pass


def records(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def losses(folder):
    return {record["step"]: record["loss"] for record in records(folder) if "loss" in record}


@pytest.fixture
def fresh_accelerator():
    """Accelerate holds a process to one precision."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.mark.parametrize("carryover", [False, True])
def test_mixed_precision(job, tmp_path, fresh_accelerator, carryover):
    """Passes without a gradient, too, heed autocast: the drafter is in float32, what enters it may not be."""
    train(job("mixed", carryover, precision="bf16", epochs=0.4), MODEL, quiet)
    found = losses(tmp_path / "mixed")
    assert found and all(math.isfinite(loss) for loss in found.values())


@pytest.mark.parametrize("carryover", [False, True])
def test_a_resumed_run_is_the_run(job, tmp_path, monkeypatch, carryover):
    train(job("whole", carryover), MODEL, quiet)
    learn = Trainer.learn

    def stop_after_three(self):
        if self.step == 3:
            raise KeyboardInterrupt
        return learn(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "learn", stop_after_three)
        with pytest.raises(KeyboardInterrupt):
            train(job("parts", carryover, save_every=0.0), MODEL, quiet)
    train(job("parts", carryover, resume=True), MODEL, quiet)
    whole, parts = losses(tmp_path / "whole"), losses(tmp_path / "parts")
    assert whole == parts and len(whole) == 6
    one, other = (load_file(tmp_path / name / "drafter" / "model.safetensors") for name in ("whole", "parts"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_that_came_to_its_end_is_not_evaluated_again(job, tmp_path):
    train(job(), MODEL, quiet)
    before = records(tmp_path / "run")
    train(job(resume=True), MODEL, quiet)
    assert records(tmp_path / "run") == before and before[-1]["evaluation"]


def test_what_a_run_leaves(job, tmp_path):
    folder = train(job(), MODEL, quiet)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["finished"] and summary["steps"] == summary["total_steps"] == 6
    assert summary["training_responses"] == 24 and summary["held_out_responses"] == 4
    settings = summary["settings"]
    assert settings["batch"] == 4 and settings["carryover"] is True and settings["block_size"] is None
    assert settings["target"] == "planted" and settings["target_dtype"] == "float32"
    assert settings["responses"].endswith("responses.jsonl") and settings["start"].endswith("start")
    drafter = {
        "family": "dflash",
        "layers": 1,
        "tap_layers": [0],
        "block_size": planted.BLOCK,
        "markov_rank": 0,
    }
    assert summary["drafter"] == drafter
    evaluations = [record for record in records(tmp_path / "run") if "evaluation" in record]
    assert [record["step"] for record in evaluations] == [0, 6]
    assert all({"tau", "matched_on", "matched_off"} <= record.keys() for record in evaluations)
    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == "bfloat16" and config["dflash_config"]["carryover"] is True
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert (tmp_path / "run" / "curves.png").stat().st_size > 5000


def test_the_carryover_embedding_takes_steps_of_its_own(job, tmp_path):
    """Adam's first step is the rate, whatever the gradient: a rate 8 times as high goes 8 times as far."""
    moved, weights = [], []
    for times in (1.0, 8.0):
        train(job(f"times{times}", batch=24, schedule="constant", warmup=0.0, carry_lr=times), MODEL, quiet)
        (kept,) = (tmp_path / f"times{times}" / "checkpoints").glob("step-*")
        tensors = load_file(kept / "model.safetensors")
        moved.append(tensors.pop("carryover_embedding"))
        weights.append(tensors)
    assert float(moved[0].abs().max()) > 1e-4
    torch.testing.assert_close(moved[1], 8 * moved[0])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_slice_ends_resumably(job, tmp_path):
    train(job(minutes=0.0), MODEL, quiet)
    assert not json.loads((tmp_path / "run" / "summary.json").read_text())["finished"]
    train(job(resume=True), MODEL, quiet)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["finished"]


def test_a_run_is_not_overwritten_nor_changed(job):
    train(job(minutes=0.0), MODEL, quiet)
    with pytest.raises(ValueError, match="holds a run already: give --resume"):
        train(job(), MODEL, quiet)
    with pytest.raises(ValueError, match=r"keeps its settings \(lr was 0.0006, is 0.1\)"):
        train(job(resume=True, lr=0.1), MODEL, quiet)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good(job, tmp_path, monkeypatch):
    learn = Trainer.learn

    def spoil(self):
        if self.step == 2:
            with torch.no_grad():
                self.drafter.body.fc.weight.fill_(math.nan)
        return learn(self)

    monkeypatch.setattr(Trainer, "learn", spoil)
    with pytest.raises(ValueError, match=r"at step 3 the loss is nan.*lower --lr.*--init '.*step-0000002'"):
        train(job(save_every=0.0), MODEL, quiet)
    kept = checkpoints.latest(tmp_path / "run" / "checkpoints")
    assert kept is not None and kept.name == "step-0000002"
    assert all(torch.isfinite(tensor).all() for tensor in load_file(kept / "model.safetensors").values())


def test_fp16_passes_over_a_step_whose_gradient_was_too_large():
    """Its scaler does, and lowers its scale; a loss that is no number is one in any precision."""
    trainer = SimpleNamespace(accelerator=SimpleNamespace(scaler=object()), step=0, stray=ValueError)
    Trainer.check(trainer, 1.0, math.inf)
    with pytest.raises(ValueError, match="the loss is nan"):
        Trainer.check(trainer, math.nan, math.inf)
    trainer.accelerator.scaler = None
    with pytest.raises(ValueError, match="norm inf"):
        Trainer.check(trainer, 1.0, math.inf)


def test_a_decode_ends_with_the_targets_end_tokens_only(job, tmp_path):
    """A response that was cut ends with any token."""
    job()
    drafter = load_drafter(tmp_path / "start", MODEL)
    prompt, response = planted.texts(1, 30)[0]
    whole, cut = (Response(tuple(prompt), tuple(response[:length])) for length in (30, 3))
    found = [decoded(drafter, MODEL, [each], 20, DecodeConfig("dflash")) for each in (whole, cut)]
    assert found[0] == found[1]


def test_weights_that_are_no_numbers_are_not_saved(job, tmp_path, monkeypatch):
    """Spoilt by the step itself, whose loss was still a number."""
    learn = Trainer.learn

    def spoil(self):
        record = learn(self)
        if self.step == 3:
            with torch.no_grad():
                self.drafter.body.fc.weight[0, 0] = math.inf
        return record

    monkeypatch.setattr(Trainer, "learn", spoil)
    with pytest.raises(ValueError, match=r"after step 3 a weight is no finite number.*step-0000002"):
        train(job(save_every=0.0), MODEL, quiet)
    for kept in (tmp_path / "run" / "checkpoints" / "step-0000002", tmp_path / "run" / "drafter"):
        tensors = load_file(kept / "model.safetensors")
        assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    rest = job("rest", lr=1e-4)
    monkeypatch.undo()
    train(replace(rest, start=str(tmp_path / "run" / "checkpoints" / "step-0000002")), MODEL, quiet)


def test_a_drafter_is_replaced_only_by_a_whole_one(job, tmp_path, monkeypatch):
    folder = train(job(minutes=0.0), MODEL, quiet)
    before = (folder / "model.safetensors").read_bytes()
    own = checkpoints.save_file

    def full(tensors, path, **more):
        if next(iter(tensors.values())).dtype == torch.bfloat16:
            path.write_bytes(b"half")
            raise SafetensorError("No space left on device")
        own(tensors, path, **more)

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(ValueError, match=r"cannot write .*drafter.*No space left on device.*free some space"):
        train(job(resume=True), MODEL, quiet)
    assert (folder / "model.safetensors").read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}


def test_a_log_cut_off_in_a_line_is_gone_on_with(job, tmp_path):
    train(job("whole"), MODEL, quiet)
    train(job(minutes=0.0), MODEL, quiet)
    with (tmp_path / "run" / "log.jsonl").open("a") as file:
        file.write('{"step": 1, "lo')
    train(job(resume=True), MODEL, quiet)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_a_damaged_checkpoint_is_named(job, tmp_path):
    train(job(minutes=0.0), MODEL, quiet)
    state = tmp_path / "run" / "checkpoints" / "step-0000000" / checkpoints.STATE
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(ValueError, match="step-0000000.*is damaged.*remove it"):
        train(job(resume=True), MODEL, quiet)


def test_a_step_is_saved_once(job, tmp_path):
    """A checkpoint of the same step is not thrown away to be written again."""
    train(job(minutes=0.0), MODEL, quiet)
    state = tmp_path / "run" / "checkpoints" / "step-0000000" / checkpoints.STATE
    before = state.stat().st_ino
    train(job(minutes=0.0, resume=True), MODEL, quiet)
    assert state.stat().st_ino == before


def test_other_responses_or_another_target_are_another_run(job, tmp_path):
    run = job(minutes=0.0)
    train(run, MODEL, quiet)
    with pytest.raises(ValueError, match="target was 'planted', is 'another'"):
        train(replace(run, resume=True, target="another"), MODEL, quiet)
    with pytest.raises(ValueError, match="block_size was None, is 7"):
        train(replace(run, resume=True, shape=DrafterShape(7)), MODEL, quiet)
    with run.responses.open("a") as file:
        file.write(LINE)
    with pytest.raises(ValueError, match="responses_digest was"):
        train(replace(run, resume=True), MODEL, quiet)


def test_a_run_begun_by_an_earlier_version_goes_on(job, tmp_path):
    train(job(minutes=0.0), MODEL, quiet)
    path = tmp_path / "run" / "settings.json"
    settings = json.loads(path.read_text())
    del settings["responses_digest"], settings["target"]
    path.write_text(json.dumps(settings))
    train(job(resume=True), MODEL, quiet)


def test_a_full_disk_leaves_the_checkpoint_before(job, tmp_path, monkeypatch):
    train(job(minutes=0.0), MODEL, quiet)
    before = checkpoints.latest(tmp_path / "run" / "checkpoints")

    def full(state, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(
        ValueError, match=r"No space left on device.*free some space and resume from .*step-0000000"
    ):
        train(job(resume=True), MODEL, quiet)
    assert checkpoints.latest(tmp_path / "run" / "checkpoints") == before
    monkeypatch.undo()
    train(job(resume=True), MODEL, quiet)


def test_a_disk_that_fills_at_the_first_byte_is_said_too(job, tmp_path, monkeypatch):
    """The drafter is written before the optimiser's state, and safetensors has an error of its own."""
    train(job(minutes=0.0), MODEL, quiet)

    def full(_tensors, path, **_more):
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(
        ValueError, match=r"cannot write the checkpoint .*\(I/O error.*resume from .*step-0000000"
    ):
        train(job(resume=True), MODEL, quiet)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-0000000"]


def test_only_the_last_checkpoints_stay(job, tmp_path):
    train(job(save_every=0.0), MODEL, quiet)
    assert [path.name for path in checkpoints.found(tmp_path / "run" / "checkpoints")] == [
        "step-0000005",
        "step-0000006",
    ]


def test_kept_features_change_nothing(job, tmp_path):
    train(job("fresh"), MODEL, quiet)
    for name in ("first", "second"):
        train(replace(job(name), features=tmp_path / "features"), MODEL, quiet)
        assert losses(tmp_path / name) == losses(tmp_path / "fresh")
    assert any((tmp_path / "features").iterdir())


LINE = '{"prompt_ids": [1, 2], "response_ids": [3, 4, 5, 6, 7, 8, 9]}\n'


def test_a_line_cut_off_is_left_out(tmp_path):
    path = tmp_path / "responses.jsonl"
    path.write_text(LINE * 2 + LINE[:30])
    found, unfinished = read_responses(path, 24)
    assert len(found) == 2 and unfinished == 1


@pytest.mark.parametrize(
    "text, reason",
    [
        (LINE + LINE[:30] + "\n" + LINE, "line 2 .*is not JSON"),
        ("", "holds no response"),
        ('{"prompt": "hello"}\n', "line 1 .*no prompt_ids and response_ids"),
        ('{"prompt_ids": [], "response_ids": [1]}\n', "non-empty prompt"),
        (
            '{"prompt_ids": [1], "response_ids": [24]}\n',
            "token 24, the target's vocabulary is 24.*regenerate",
        ),
        ("[1]\n", "line 1 .*no prompt_ids"),
        ('{"prompt_ids": [1], "response_ids": [-5]}\n', "token -5, the target's vocabulary"),
    ],
)
def test_bad_responses_are_refused(tmp_path, text, reason):
    path = tmp_path / "responses.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        read_responses(path, 24)


def test_responses_without_room_are_dropped_and_counted(tmp_path):
    path = tmp_path / "responses.jsonl"
    path.write_text(LINE * 3 + '{"prompt_ids": [1, 2], "response_ids": [3, 4, 5]}\n')
    found, _ = read_responses(path, 24)
    training, held_out, dropped = split(found, 1, 5, 100, 0)
    assert (len(training), len(held_out), dropped) == (2, 1, 1)
    assert split(found, 1, 5, 8, 0)[0][0].response_ids == (3, 4, 5, 6, 7, 8)
    with pytest.raises(ValueError, match="3 responses leave room for a block of 5.*3 held out"):
        split(found, 3, 5, 100, 0)


def test_a_drafter_for_another_target_is_refused(job, tmp_path):
    path = tmp_path / "start" / "config.json"
    config = json.loads(path.read_text())
    config["dflash_config"]["target_layer_ids"] = [1]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="layers \\[1\\]|layer"):
        train(job(), MODEL, quiet)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"schedule": "linear"}, "schedule must be one of cosine, constant"),
        ({"batch": 0}, "batch must be positive"),
        ({"warmup": 1.0}, r"warmup must lie in \[0, 1\)"),
        ({"gamma": -1.0}, "gamma must be positive"),
        ({"probe": 9}, "hold out more or probe fewer"),
        ({"probe": -1}, "probe must be at least 0"),
        ({"decode_tokens": 0}, "decode_tokens must be at least 1"),
        ({"epochs": math.inf}, "epochs must be a finite number"),
        ({"save_every": math.nan}, "save_every must be a finite number"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
    ],
)
def test_bad_settings_are_refused(changes, reason):
    with pytest.raises(ValueError, match=reason):
        TrainConfig(**(SETTINGS | changes))
