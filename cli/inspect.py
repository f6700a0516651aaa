"""`reanchor inspect`: what a drafter's checkpoint was recognised as, without loading it."""

from __future__ import annotations

import json
from typing import Any

import click

from .console import usage_errors, write


@click.command()
@click.argument("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
def inspect(checkpoint: str, as_json: bool) -> None:
    """Say what a drafter's checkpoint is: CHECKPOINT is a folder, a hub id, or demo."""
    with usage_errors():
        from reanchor.drafters.inspection import inspect_drafter

        found = inspect_drafter(checkpoint)
    write(json.dumps(found) + "\n" if as_json else table(found))


def table(found: dict[str, Any]) -> str:
    """One row a fact; plain text, so that it can be piped."""
    width = max(map(len, found))
    return "".join(f"{name.replace('_', ' '):<{width}}  {shown(value)}\n" for name, value in found.items())


def shown(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10**6 else str(value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        joint = "; " if any("," in str(each) for each in value) else ", "
        return joint.join(map(str, value)) or "none"
    return str(value)
