"""One knob over several values: ReAnchor at each, or the methods asked for; ddtree beside it where the knob is the node
budget. Methods without the knob run once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from transformers import PreTrainedModel

from reanchor.benchmark.runners import EngineRunner, HuggingFaceRunner, MethodRunner
from reanchor.config import DEFAULT_NODES, DecodeConfig
from reanchor.drafters.base import Drafter

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
            value = DEFAULT_NODES[method]
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
    known = [each.name for each in fields(DecodeConfig) if each.name != "method"]
    if knob not in known or not listed:
        raise ValueError(f"--sweep takes KNOB=VALUE,VALUE with a knob of {', '.join(known)}, got {text!r}")
    hint = get_type_hints(DecodeConfig)[knob]
    values = tuple(value_of(hint, part.strip(), text) for part in listed.split(","))
    for value in values:
        replace(DecodeConfig("ddtree"), **{knob: value})  # which refuses no knob
    usual = ("reanchor", "ddtree") if knob == "max_nodes" else ("reanchor",)
    swept = tuple(method for method in methods if method not in ONCE) or usual
    return Sweep(knob, tuple(dict.fromkeys(values)), swept)


def value_of(hint: Any, text: str, whole: str) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if text == UNLIMITED and type(None) in kinds:
        return None
    if bool in kinds:
        return {"true": True, "false": False}.get(text.lower(), text)
    if int in kinds:
        try:
            return int(text)
        except ValueError as error:
            raise ValueError(f"--sweep {whole}: {text!r} is no whole number") from error
    return text


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
            made.append(EngineRunner(method, model, drafter, replace(base, **settings[method])))
    for sweep in sweeps:
        for name, method, value in sweep.runs():
            config = replace(base, **{**settings[method], sweep.knob: value})
            made.append(EngineRunner(name, model, drafter, config))
    return made


def methods_in(names: Sequence[str], knob: str) -> list[str]:
    """The methods that a run of methods with these names swept over a knob."""
    return list(dict.fromkeys(name.partition(" ")[0] for name in names if f" {knob}=" in name))
