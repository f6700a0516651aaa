"""`reanchor doctor`: what this machine can do, and whether a target and a drafter fit together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from .console import console, usage_errors, write
from .options import pair_options

if TYPE_CHECKING:
    from reanchor.loading import Pair


@click.command()
@pair_options
@click.option("--context", default=4096, show_default=True, help="Tokens that memory is estimated for.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the tables.")
def doctor(**given: Any) -> None:
    """Say what this machine can do for a pair: devices, attention backends, versions, fit, memory.

    Exits with 1 when the pair cannot be loaded or does not fit together; the reason is among the facts.
    """
    with usage_errors():
        if given["context"] < 1:
            raise ValueError(f"--context must be at least 1 token, got {given['context']}")
        with console.status("Looking"):
            facts, well = examine(given)
    if given["as_json"]:
        write(json.dumps(facts, ensure_ascii=False) + "\n")
    else:
        show(facts)
    if not well:
        raise click.exceptions.Exit(1)


def examine(given: dict[str, Any]) -> tuple[dict[str, dict[str, str]], bool]:
    """Facts by section, and whether the pair is well."""
    from . import checkup
    from .contest import drafter_folder

    facts = {"versions": checkup.versions(), "devices": checkup.machine()}
    try:
        pair = load(given)
        facts["pair"] = checkup.fit(pair, drafter_folder(pair))
        facts["attention"] = checkup.attention(pair)
        facts["memory"] = checkup.memory(pair, given["context"])
    except ValueError as error:
        facts["pair"] = {**facts.get("pair", {}), "trouble": str(error)}
        return facts, False
    return facts, "DIFFERENT" not in facts["pair"]["tokenizer"]


def load(given: dict[str, Any]) -> Pair:
    """Like generate's, but a target without a tokenizer is a fact, not an end."""
    from transformers.utils import logging

    from reanchor.loading import load_pair

    from .console import say

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    names = ("dtype", "device", "confidence_threshold")
    return load_pair(given["target"], given["drafter"], **{name: given[name] for name in names}, say=say)


def show(facts: dict[str, dict[str, str]]) -> None:
    """Plain lines, so that they can be piped and pasted into a report."""
    for section, lines in facts.items():
        write(f"{section}\n")
        width = max(map(len, lines))
        for name, value in lines.items():
            write(f"  {name:<{width}}  {value}\n")
