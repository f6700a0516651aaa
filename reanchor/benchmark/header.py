"""What the first line of a results file must hold for its figures to be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reanchor.benchmark import costs
from reanchor.benchmark.ablations import ABLATIONS
from reanchor.benchmark.shape import trouble
from reanchor.benchmark.sweep import methods_in, parse

NEEDED: dict[str, Any] = {"target": str, "drafter": str | None, "dtype": str, "methods": list[str]}
PERHAPS: dict[str, Any] = {
    "temperatures": list[float], "prompts": dict[str, list[str]], "ablation": str, "sweep": list[str],
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
    name, shown = header.get("ablation"), set[str]()
    if name is not None and name not in ABLATIONS:
        return f"no ablation {name!r}: known are {', '.join(ABLATIONS)}"
    if name is not None:
        shown = {each.name for each in ABLATIONS[name].variants}
    try:
        for text in header.get("sweep", ()):
            swept = parse(text, methods_in(header["methods"], parse(text).knob))
            shown |= {swept.name(method, value) for method in swept.methods for value in swept.values}
            costs.from_dict(header["costs"]).break_even(1, 1)
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        return f"its sweep cannot be shown ({type(error).__name__}: {error})"
    missing = sorted(shown - set(header["methods"]))
    return f"its methods are without {missing[0]!r}" if missing else None
