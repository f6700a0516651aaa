"""One knob over several values: ReAnchor at each, and ddtree beside it where the knob is the node budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from transformers import PreTrainedModel

from reanchor.benchmark.contestant import Contestant, Engine, HuggingFace
from reanchor.config import DecodeConfig
from reanchor.drafters.base import Drafter

UNLIMITED = "none"


@dataclass(frozen=True)
class Sweep:
    knob: str
    values: tuple[Any, ...]

    @property
    def methods(self) -> tuple[str, ...]:
        return ("reanchor", "ddtree") if self.knob == "max_nodes" else ("reanchor",)

    def name(self, method: str, value: Any) -> str:
        return f"{method} {self.knob}={UNLIMITED if value is None else value}"


def parse(text: str) -> Sweep:
    """From `max_nodes=8,16,none`. ValueError for a knob or value that isn't one."""
    knob, _, listed = text.partition("=")
    knob = knob.strip().replace("-", "_")
    known = [each.name for each in fields(DecodeConfig) if each.name != "method"]
    if knob not in known or not listed:
        raise ValueError(f"--sweep takes KNOB=VALUE,VALUE with a knob of {', '.join(known)}, got {text!r}")
    hint = get_type_hints(DecodeConfig)[knob]
    values = tuple(value_of(hint, part.strip(), text) for part in listed.split(","))
    for value in values:
        replace(DecodeConfig(), **{knob: value})
    return Sweep(knob, tuple(dict.fromkeys(values)))


def value_of(hint: Any, text: str, whole: str) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if text == UNLIMITED and type(None) in kinds:
        return None
    if int in kinds:
        try:
            return int(text)
        except ValueError as error:
            raise ValueError(f"--sweep {whole}: {text!r} is no whole number") from error
    return text


def contestants_of(
    sweeps: Sequence[Sweep], model: PreTrainedModel, drafter: Drafter, base: DecodeConfig
) -> list[Contestant]:
    """Both ways of plain decoding, DFlash, and every value of every knob, the others as in `base`."""
    made: list[Contestant] = [
        HuggingFace("hf", model),
        Engine("plain", model, None, replace(base, method="plain")),
        Engine("dflash", model, drafter, replace(base, method="dflash")),
    ]
    for sweep in sweeps:
        for value in sweep.values:
            for method in sweep.methods:
                config = replace(base, **{"method": method, sweep.knob: value})
                made.append(Engine(sweep.name(method, value), model, drafter, config))
    return made
