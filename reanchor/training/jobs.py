"""A training run from names to a drafter on disk: load, split, start or resume, train, sum up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from reanchor.config import DecodeConfig
from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.load import load_drafter
from reanchor.fused.selection import target_for
from reanchor.training import checkpoints
from reanchor.training.curves import draw_curves, read
from reanchor.training.drafter_loss import BatchBuilder, DrafterLoss
from reanchor.training.drafter_shape import DrafterShape
from reanchor.training.feature_store import FeatureStore
from reanchor.training.initialization import init_drafter
from reanchor.training.objective import LossVocabulary, refuse_untrainable
from reanchor.training.responses import read_responses, split
from reanchor.training.train_config import RESUMABLE, TrainConfig
from reanchor.training.trainer import Say, Trainer, TrainingData

FROZEN = ("embed_tokens.", "lm_head.")  # copies of the target's


@dataclass(frozen=True)
class TrainingJob:
    """What is trained, on what, and where it goes."""

    responses: Path
    out: Path
    start: str | None  # a drafter to start from; None makes a new one
    carryover: bool
    shape: DrafterShape
    config: TrainConfig
    target: str = ""  # the name of the target, for the record
    features: Path | None = None  # where features are kept; None computes them each time
    resume: bool = False


def train(job: TrainingJob, model: PreTrainedModel, say: Say) -> Path:
    """Run it; gives the folder of the drafter. The summary says whether it came to its end."""
    from accelerate import PartialState

    vocabulary = model.config.get_text_config().vocab_size
    responses, unfinished = read_responses(job.responses, vocabulary)
    processes = PartialState(cpu=model.device.type == "cpu")
    settings = settings_of(job, model)
    with processes.main_process_first():
        resumed = checkpoints.latest(job.out / "checkpoints")
        source = job.out / "start" if resumed is None else resumed
        if processes.is_main_process:
            settle(job, resumed, settings)
            if resumed is None:
                init_drafter(source, job.start, job.shape, model, job.carryover)
    drafter = load_drafter(source, model, dtype=torch.float32)
    refuse_untrainable(drafter)
    apply_freeze(drafter)
    config = job.config
    training, held_out, dropped = split(
        responses, config.held_out, drafter.proposals, config.max_length, config.seed
    )
    data = TrainingData(training, held_out, dropped, unfinished)
    teacher = FeatureStore(target_for(model, tuple(drafter.tap_layers), DecodeConfig()), job.features)
    lesson = BatchBuilder(drafter, teacher, config, job.carryover)
    seen = None
    if config.seen_only:
        found = sorted({token for each in training for token in each.response_ids})
        seen = torch.tensor(found, device=drafter.device)
    pupil = DrafterLoss(drafter, LossVocabulary(vocabulary, seen), config.decay(drafter.block_size))
    written = json.loads((source / "config.json").read_text(encoding="utf-8"))
    trainer = Trainer(lesson, pupil, data, job.out, written, say)
    if resumed is not None:
        trainer.resume(resumed)
    say(
        f"{len(training)} responses, {len(held_out)} held out, {dropped} dropped for want of room, {unfinished} cut "
        f"off; step {trainer.step} of {trainer.total}"
    )
    done = trainer.run()
    if trainer.accelerator.is_main_process:
        sum_up(job.out, trainer, settings, done)
    return job.out / "drafter"


def settings_of(job: TrainingJob, model: PreTrainedModel) -> dict[str, Any]:
    """All that was asked for."""
    return (
        asdict(job.shape)
        | asdict(job.config)
        | {
            "carryover": job.carryover,
            "start": job.start,
            "target": job.target,
            "target_dtype": str(model.dtype).removeprefix("torch."),
            "responses": str(job.responses),
            "responses_digest": hashlib.sha256(job.responses.read_bytes()).hexdigest(),
            "features": None if job.features is None else str(job.features),
        }
    )


def settle(job: TrainingJob, kept: Path | None, asked: Mapping[str, Any]) -> None:
    """A run that begins writes down what a resumed one must share; one that goes on is held to it."""
    if kept is None and job.resume:
        raise ValueError(
            f"--resume: {str(job.out)!r} holds no checkpoint to go on from; leave it out to begin"
        )
    if kept is not None and not job.resume:
        raise ValueError(f"{str(job.out)!r} holds a run already: give --resume, or another folder")
    settings = job.out / "settings.json"
    wanted = {key: value for key, value in asked.items() if key not in RESUMABLE}
    if kept is None:
        job.out.mkdir(parents=True, exist_ok=True)
        (job.out / "log.jsonl").unlink(missing_ok=True)
        settings.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
        return
    try:
        before = json.loads(settings.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read what the run began with ({error}): start another with --out") from None
    changed = [
        f"{key} was {before[key]!r}, is {wanted[key]!r}"
        for key in wanted
        if key in before and before[key] != wanted[key]
    ]
    if changed:
        raise ValueError(f"a resumed run keeps its settings ({'; '.join(changed)}): start another with --out")


def apply_freeze(drafter: BlockDrafter) -> None:
    for name, parameter in drafter.named_parameters():
        parameter.requires_grad_(not name.startswith(FROZEN))


def shape_of(drafter: BlockDrafter) -> dict[str, Any]:
    config = drafter.config
    return {
        "family": config.family,
        "layers": config.layers,
        "tap_layers": list(config.tap_layers),
        "block_size": config.block_size,
        "markov_rank": config.markov.rank if config.markov else 0,
    }


def sum_up(out: Path, trainer: Trainer, settings: dict[str, Any], done: bool) -> None:
    draw_curves(out / "log.jsonl", out / "curves.png")
    records = read(out / "log.jsonl")
    evaluations = [record for record in records if record.get("evaluation")]
    steps = [record for record in records if "loss" in record]
    summary: dict[str, Any] = {
        "finished": done,
        "steps": trainer.step,
        "total_steps": trainer.total,
        "hours": round(sum(record["seconds"] for record in steps) / 3600, 3),
        "training_responses": len(trainer.data.training),
        "held_out_responses": len(trainer.data.held_out),
        "dropped_responses": trainer.data.dropped,
        "cut_lines": trainer.data.unfinished,
        "parameters": sum(each.numel() for each in trainer.learned),
        "device": str(trainer.accelerator.device),
        "processes": trainer.accelerator.num_processes,
        "first_evaluation": evaluations[0] if evaluations else None,
        "last_evaluation": evaluations[-1] if evaluations else None,
        "settings": settings,
        "drafter": shape_of(trainer.drafter),
        "torch": torch.__version__,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
