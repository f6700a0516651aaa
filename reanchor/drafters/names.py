"""Tensor names of the exporters, as ours (z-lab's); it knows no values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

Value = TypeVar("Value")

PREFIXES = ("model.", "logit_head.", "logits_correction.", "domino_head.")
RENAMED = {
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "midlayer.": "layers.0.",
    # ModelOpt keeps DSpark's heads at the top
    "markov_w1.": "markov_head.markov_w1.",
    "markov_w2.": "markov_head.markov_w2.",
    "gate_proj.": "markov_head.gate_proj.",
    "joint_proj.": "markov_head.joint_proj.",
    "confidence_proj.": "confidence_head.proj.",
}
# The target's own, for training only, or made again from the config
UNUSED = re.compile(r"t2d$|verifier_|(.*\.)?rotary_emb\.")
CODEBOOK = re.compile(r"candidate_selector\.\w+_codebook$")


def canonical(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    for theirs, ours in RENAMED.items():
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
            break
    return f"{name}.weight" if CODEBOOK.match(name) else name


def renamed(found: Mapping[str, Value]) -> dict[str, Value]:
    """What the drafter reads of a checkpoint, under our names."""
    ours: dict[str, Value] = {}
    for name, value in found.items():
        short = canonical(name)
        if UNUSED.match(short):
            continue
        if short in ours:
            raise ValueError(f"the checkpoint holds {short!r} twice, once as {name!r}: keep one of them")
        ours[short] = value
    return ours


def starting(names: Iterable[str], *prefixes: str) -> bool:
    return any(name.startswith(prefixes) for name in names)
