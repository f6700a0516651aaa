"""Header of a results file: what it must hold for its figures to be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reanchor.benchmark import pass_latency
from reanchor.benchmark.ablations import ABLATIONS
from reanchor.benchmark.pass_latency import PassLatency
from reanchor.benchmark.schema import trouble
from reanchor.benchmark.sweep import parse

NEEDED: dict[str, Any] = {"target": str, "drafter": str | None, "dtype": str, "methods": list[str]}
PERHAPS: dict[str, Any] = {
    "temperatures": list[float], "prompts": dict[str, list[str]], "ablation": str, "sweep": list[str],
    "costs": PassLatency,
}  # fmt: skip


def trouble_of(header: Mapping[str, Any]) -> str | None:
    """None when nothing is wrong."""
    missing = [name for name in NEEDED if name not in header]
    if missing:
        return f"no {missing[0]}"
    for name, hint in {**NEEDED, **PERHAPS}.items():
        found = trouble(header[name], hint, name) if name in header else None
        if found:
            return found
    return study_trouble(header)


def study_trouble(header: Mapping[str, Any]) -> str | None:
    name = header.get("ablation")
    if name is not None and name not in ABLATIONS:
        return f"no ablation {name!r}: known are {', '.join(ABLATIONS)}"
    variants = ABLATIONS[name].variants if name is not None else ()
    missing = [each.name for each in variants if each.name not in header["methods"]]
    if missing:
        return f"its methods are without {missing[0]!r}"
    try:
        for text in header.get("sweep", ()):
            parse(text)
            measured = pass_latency.from_dict(header["costs"])
            _ = measured.break_even(1, 1), 1 / measured.draft[1]
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        return f"its sweep cannot be shown ({type(error).__name__}: {error})"
    return None
