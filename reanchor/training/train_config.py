"""The knobs of training, each named, explained and checked once; it knows no model and no file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from reanchor.config import check_fields, knob

Precision = Literal["no", "bf16", "fp16"]
Schedule = Literal["cosine", "constant"]
DECAY = {16: 7.0, 10: 5.0, 8: 4.0}  # gamma by block size, as published

LEAST = {
    "weight_decay": 0,
    "held_out": 0,
    "probe": 0,
    "decode_prompts": 0,
    "decode_tokens": 1,
    "evaluate_every": 0,
    "save_every": 0,
}


def refuse_endless(config: object) -> None:
    """ValueError for a number that is none, or has no end."""
    for name, value in vars(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value}")


@dataclass(frozen=True)
class TrainConfig:
    """What a run does. The defaults suit a laptop; examples/recipes holds the published settings."""

    epochs: float = knob(3.0, "Passes over the training responses.")
    batch: int = knob(4, "Responses an optimiser step, over all processes.")
    anchors: int = knob(32, "Anchors sampled a response.")
    max_length: int = knob(512, "Longest sequence, prompt included; what lies beyond is cut.")
    lr: float = knob(6e-4, "Peak learning rate.")
    carry_lr: float = knob(
        32.0,
        "Rate of the carryover embedding, times lr: it lives among features, which are far larger than weights.",
    )
    warmup: float = knob(0.04, "Share of the steps in which the rate rises.")
    schedule: Schedule = knob("cosine", "How the rate goes on after warm-up.")
    clip: float = knob(1.0, "Largest gradient norm.")
    weight_decay: float = knob(0.0, "AdamW's weight decay.")
    gamma: float | None = knob(None, "Decay of slot weights, exp(-(j-1)/gamma).  [default: by block size]")
    seen_only: bool = knob(True, "Softmax over the tokens that occur in the responses only.")
    precision: Precision = knob("bf16", "Mixed precision of the drafter.")
    seed: int = knob(0, "Seed of order, anchors and new weights.")
    held_out: int = knob(96, "Responses kept for evaluation.")
    probe: int = knob(16, "Held-out responses that each packed evaluation reads.")
    decode_prompts: int = knob(8, "Held-out prompts that are really decoded.")
    decode_tokens: int = knob(64, "New tokens of each real decode.")
    evaluate_every: float = knob(10.0, "Minutes between evaluations.")
    save_every: float = knob(5.0, "Minutes between checkpoints.")
    minutes: float | None = knob(None, "Stop, resumably, after this many minutes.  [default: at the end]")

    def __post_init__(self) -> None:
        check_fields(self)
        refuse_endless(self)
        for name in ("epochs", "batch", "anchors", "max_length", "lr", "carry_lr", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must lie in [0, 1), got {self.warmup}")
        if self.gamma is not None and not self.gamma > 0:
            raise ValueError(f"gamma must be positive, got {self.gamma}")
        if self.probe > self.held_out or self.decode_prompts > self.held_out:
            raise ValueError(
                f"held_out is {self.held_out}, but probe {self.probe} and decode_prompts {self.decode_prompts} "
                "come out of it; hold out more or probe fewer"
            )

    def decay(self, block_size: int) -> float:
        return self.gamma or DECAY.get(block_size, block_size / 2)


# What a resumed run may change: none of it changes a loss.
RESUMABLE = (
    "minutes",
    "evaluate_every",
    "save_every",
    "probe",
    "decode_prompts",
    "decode_tokens",
    "features",
)
