"""One knob over several values: ReAnchor at each, or the methods asked for; ddtree beside it where the knob is the node
budget. Methods without the knob run once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from transformers import PreTrainedModel

from reanchor.benchmark.runners import EngineRunner, HuggingFaceRunner, MethodRunner
from reanchor.config import DecodeConfig, ReAnchorRules, parse_value
from reanchor.drafters.base import Drafter
from reanchor.methods import METHODS

UNLIMITED = "none"
ONCE = ("hf", "plain", "dflash")  # no tree, so nothing to sweep over


@dataclass(frozen=True)
class Sweep:
    knob: str
    values: tuple[Any, ...]
    methods: tuple[str, ...]

    def name(self, method: str, value: Any) -> str:
        """Says the real budget: ddtree has an end of its own where it is given none."""
        if value is None and self.knob == "max_nodes" and method == "ddtree":
            value = METHODS[method].default_nodes
        return f"{method} {self.knob}={worded(value)}"

    def runs(self) -> list[tuple[str, str, Any]]:
        """Name, method and value of every method, each once."""
        named = {
            self.name(method, value): (method, value) for value in self.values for method in self.methods
        }
        return [(name, method, value) for name, (method, value) in named.items()]


def worded(value: Any) -> str:
    """As it is asked for."""
    return UNLIMITED if value is None else str(value).lower()


def parse(text: str, methods: Sequence[str] = ()) -> Sweep:
    """From `max_nodes=8,16,none`. methods: those of the run, if it names any. ValueError for a knob or value that isn't
    one; what a method refuses it says when it is made.
    """
    knob, _, listed = text.partition("=")
    knob = knob.strip().replace("-", "_")
    known = [each.name for config in (DecodeConfig, ReAnchorRules) for each in fields(config)]
    known = [name for name in known if name not in ("method", "rules")]
    if knob not in known or not listed:
        raise ValueError(f"--sweep takes KNOB=VALUE,VALUE with a knob of {', '.join(known)}, got {text!r}")
    owner = DecodeConfig if knob in DecodeConfig.__dataclass_fields__ else ReAnchorRules
    values = tuple(parse_value(owner, knob, part.strip()) for part in listed.split(","))
    for value in values:
        DecodeConfig("ddtree").having(**{knob: value})  # which refuses no knob
    usual = ("reanchor", "ddtree") if knob == "max_nodes" else ("reanchor",)
    swept = tuple(method for method in methods if method not in ONCE) or usual
    return Sweep(knob, tuple(dict.fromkeys(values)), swept)


def sweep_methods(
    sweeps: Sequence[Sweep],
    model: PreTrainedModel,
    drafter: Drafter,
    base: DecodeConfig,
    settings: Mapping[str, Mapping[str, Any]],
    once: Sequence[str] = ONCE,
) -> list[MethodRunner]:
    """The methods that run once, and every value of every knob, the others as in `base`. settings: of a method."""
    made: list[MethodRunner] = []
    for method in ONCE:
        if method == "hf" and method in once:
            made.append(HuggingFaceRunner("hf", model))
        elif method in once:
            made.append(EngineRunner(method, model, drafter, base.having(**settings[method])))
    for sweep in sweeps:
        for name, method, value in sweep.runs():
            config = base.having(**{**settings[method], sweep.knob: value})
            made.append(EngineRunner(name, model, drafter, config))
    return made


def methods_in(names: Sequence[str], knob: str) -> list[str]:
    """The methods that a run of methods with these names swept over a knob."""
    return list(dict.fromkeys(name.partition(" ")[0] for name in names if f" {knob}=" in name))
