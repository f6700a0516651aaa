"""The loop of a run: learn, log, evaluate, save, stop; it knows no command line and prints nothing itself."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reanchor.config import DecodeConfig
from reanchor.drafters.block import BlockDrafter
from reanchor.training import checkpoints
from reanchor.training.anchors import EpochOrder, rng_of
from reanchor.training.curves import evaluated, read
from reanchor.training.drafter_loss import BatchBuilder, DrafterLoss
from reanchor.training.evaluation import decoded, matched
from reanchor.training.objective import acceptance
from reanchor.training.responses import Response
from reanchor.training.train_config import TrainConfig

Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainingData:
    training: list[Response]
    held_out: list[Response]
    dropped: int  # responses without room for a block
    unfinished: int  # lines cut off


def parameter_groups(drafter: BlockDrafter, carry_lr: float) -> list[dict[str, Any]]:
    """All that learns; the carryover embedding with steps of its own, as Adam's are the size of the rate whatever the
    size of what they are added to.
    """
    learned = {name: each for name, each in drafter.named_parameters() if each.requires_grad}
    embedding = learned.pop("carryover_embedding", None)
    groups: list[dict[str, Any]] = [{"params": list(learned.values()), "times": 1.0}]
    return groups if embedding is None else [*groups, {"params": [embedding], "times": carry_lr}]


def rate(step: int, total: int, config: TrainConfig) -> float:
    """The learning rate of step `step` (from 0) of `total`."""
    rising = max(1, round(config.warmup * total))
    if step < rising:
        return config.lr * (step + 1) / rising
    if config.schedule == "constant":
        return config.lr
    return config.lr / 2 * (1 + math.cos(math.pi * (step - rising) / max(1, total - rising)))


class Trainer:
    """One run in one folder. `written` is the drafter's config as it goes to disk; `step` where it begins."""

    def __init__(
        self,
        lesson: BatchBuilder,
        pupil: DrafterLoss,
        data: TrainingData,
        out: Path,
        written: Mapping[str, Any],
        say: Say,
    ) -> None:
        from accelerate import Accelerator

        self.lesson, self.data, self.out, self.written, self.say = lesson, data, out, written, say
        self.config, self.drafter = lesson.config, pupil.drafter
        precision, device = self.config.precision, self.drafter.device
        self.accelerator = Accelerator(mixed_precision=precision, cpu=device.type == "cpu")
        processes = self.accelerator.num_processes
        if self.config.batch % processes:
            raise ValueError(f"batch {self.config.batch} does not divide among {processes} processes")
        self.accelerator.gradient_accumulation_steps = self.config.batch // processes
        self.learned = [each for each in pupil.parameters() if each.requires_grad]
        optimiser = torch.optim.AdamW(
            parameter_groups(pupil.drafter, self.config.carry_lr),
            self.config.lr,
            (0.9, 0.95),
            weight_decay=self.config.weight_decay,
        )
        self.pupil, self.optimiser = self.accelerator.prepare(pupil, optimiser)
        self.order = EpochOrder(len(data.training), self.config.batch, self.config.seed)
        self.total = math.ceil(self.config.epochs * len(data.training) / self.config.batch)
        self.step, self.begun = 0, time.monotonic()
        self.saved = self.evaluated = self.begun

    def run(self) -> bool:
        """Train to the end; False when the allowed minutes ended first. Resumable either way."""
        if self.step == 0:
            self.evaluate()
        while self.step < self.total:
            if self.config.minutes is not None and self.due(self.begun, self.config.minutes):
                self.save()
                return False
            record = self.learn()
            self.log(record)
            if self.due(self.evaluated, self.config.evaluate_every):
                self.evaluate()
            if self.due(self.saved, self.config.save_every):
                self.save()
        self.evaluate()
        self.save()
        return True

    def learn(self) -> dict[str, Any]:
        """One optimiser step."""
        start = time.monotonic()
        responses = self.order.at(self.step)
        mine = range(self.accelerator.process_index, len(responses), self.accelerator.num_processes)
        counts: dict[str, float] = {
            "loss": 0.0,
            "rounds": 0,
            "tokens": 0,
            "accepted": 0,
            "verified": 0,
            "dropped": 0,
        }
        for group in self.optimiser.param_groups:
            group["lr"] = group["times"] * rate(self.step, self.total, self.config)
        for place in mine:
            with self.accelerator.accumulate(self.pupil):
                self.study(self.data.training[responses[place]], place, counts)
                norm = None
                if self.accelerator.sync_gradients:
                    norm = float(self.accelerator.clip_grad_norm_(self.learned, self.config.clip))
                    self.check(counts["loss"], norm)
                self.optimiser.step()
                self.optimiser.zero_grad()
        self.step += 1
        told = self.accelerator.reduce(torch.tensor(list(counts.values()), device=self.accelerator.device))
        return self.record(dict(zip(counts, told.tolist(), strict=True)), norm, time.monotonic() - start)

    def record(self, counts: dict[str, float], norm: float | None, seconds: float) -> dict[str, Any]:
        """What the log says of the step just done; counts are those of all processes."""
        record = {
            "step": self.step,
            "loss": counts["loss"] / self.config.batch,
            "lr": rate(self.step - 1, self.total, self.config),
            "norm": norm,
            "tokens_a_round": counts["tokens"] / max(1, counts["rounds"]),
            "seconds": round(seconds, 3),
        }
        if self.lesson.carryover:
            record |= {
                "first_draft": 1 + counts["accepted"] / max(1, counts["verified"]),
                "dropped_anchors": int(counts["dropped"]),
            }
        return record

    def study(self, response: Response, place: int, counts: dict[str, float]) -> None:
        with self.accelerator.autocast():
            material = self.lesson.prepare(response, rng_of(self.config.seed, self.step, place))
        loss, hits = self.pupil(material)
        self.accelerator.backward(loss)
        counts["loss"] += float(loss.detach())
        if material.weight:
            counts["rounds"] += len(hits)
            counts["tokens"] += int(acceptance(hits).sum())
        counts["accepted"] += sum(material.accepted)
        counts["verified"] += len(material.accepted)
        counts["dropped"] += material.dropped

    def check(self, loss: float, norm: float) -> None:
        scaler = (
            self.accelerator.scaler
        )  # of fp16: it passes over steps whose gradients were too large for it
        if math.isfinite(loss) and (math.isfinite(norm) or scaler is not None):
            return
        raise self.stray(f"at step {self.step + 1} the loss is {loss} and the gradient's norm {norm}")

    def stray(self, what: str) -> ValueError:
        """What went wrong and what is left: a resumed run keeps its rate, so the remedy is another run."""
        kept = checkpoints.latest(self.out / "checkpoints")
        begin = "" if kept is None else f" from the last good checkpoint, --init {str(kept)!r},"
        return ValueError(f"{what}: lower --lr and start another run{begin} with another --out")

    def evaluate(self) -> None:
        """Once a step, also when a run that had come to its end is gone on with."""
        if not self.accelerator.is_main_process or self.step in evaluated(read(self.out / "log.jsonl")):
            return
        record: dict[str, Any] = {"step": self.step, "evaluation": True}
        with self.accelerator.autocast():
            probe = self.data.held_out[: self.config.probe]
            record |= matched(self.lesson, probe, self.config.seed) if probe else {}
        prompts = self.data.held_out[: self.config.decode_prompts]
        if prompts:
            model = self.lesson.teacher.target.model
            record |= decoded(self.drafter, model, prompts, self.config.decode_tokens, self.decoding)
        self.log(record)
        self.evaluated = time.monotonic()

    @property
    def decoding(self) -> DecodeConfig:
        return DecodeConfig(method="dflash")  # carried rows are read wherever the drafter can

    def save(self) -> None:
        """A checkpoint and the drafter, of weights that are numbers: a step's loss says nothing of those it left."""
        if not all(bool(torch.isfinite(each).all()) for each in self.learned):
            raise self.stray(f"after step {self.step} a weight is no finite number")
        if self.accelerator.is_main_process:
            state = {"step": self.step, "optimiser": self.optimiser.state_dict()}
            if self.accelerator.scaler is not None:
                state["scaler"] = self.accelerator.scaler.state_dict()
            folder = checkpoints.save(self.out / "checkpoints", self.step, self.written, self.drafter, state)
            checkpoints.write_drafter(
                self.out / "drafter", self.written, checkpoints.tensors_of(self.drafter), torch.bfloat16
            )
            self.say(f"saved {folder}")
        self.accelerator.wait_for_everyone()
        self.saved = time.monotonic()

    def resume(self, folder: Path) -> None:
        """Go on from a checkpoint whose drafter is loaded already."""
        state = checkpoints.load_state(folder)
        self.step = state["step"]
        self.optimiser.load_state_dict(state["optimiser"])
        if self.accelerator.scaler is not None and "scaler" in state:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        if self.accelerator.is_main_process:
            log = self.out / "log.jsonl"
            records = [record for record in read(log) if record["step"] <= self.step]
            log.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")

    def log(self, record: dict[str, Any]) -> None:
        if not self.accelerator.is_main_process:
            return
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        figures = {key: value for key, value in record.items() if key not in ("step", "evaluation")}
        told = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in figures.items()
        )
        self.say(f"step {record['step']}/{self.total}: {told}")

    def due(self, moment: float, minutes: float) -> bool:
        """Are the minutes since then over? By the first process's clock: all must do the same next."""
        told = torch.tensor(
            float((time.monotonic() - moment) / 60 >= minutes), device=self.accelerator.device
        )
        if not self.accelerator.is_main_process:
            told.zero_()
        sure: Any = self.accelerator.reduce(told)
        return bool(sure > 0)
