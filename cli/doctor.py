"""`reanchor doctor`: what this machine can do, and whether a target and a drafter fit together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import hush, usage_errors, waiting, write
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
        with waiting("Looking"):
            facts, well = examine(given)
    if given["as_json"]:
        write(json.dumps(facts) + "\n")
    else:
        show(facts)
    if not well:
        raise click.exceptions.Exit(1)


def examine(given: dict[str, Any]) -> tuple[dict[str, dict[str, str]], bool]:
    """Facts by section, and whether the pair is well. A drafter that doesn't fit hides nothing about the target."""
    from . import checkup

    facts: dict[str, dict[str, str]] = {"versions": checkup.versions(), "devices": checkup.machine()}
    try:
        pair = target_of(given)
    except ValueError as error:
        return {**facts, "pair": {"trouble": str(error)}}, False
    pair, trouble = joined(pair, given)
    sections = {
        "pair": lambda: checkup.fit(pair, folder_of(pair)),
        "attention": lambda: checkup.attention(pair),
        "memory": lambda: checkup.memory(pair, given["context"]),
    }
    for name, look in sections.items():
        try:
            facts[name] = look()
        except ValueError as error:
            facts[name], trouble = {}, trouble or str(error)
    if trouble:
        unloaded = {} if pair.drafter else {"drafter": "not loaded"}
        facts["pair"] = {**facts["pair"], **unloaded, "trouble": trouble}
    return facts, not trouble and "DIFFERENT" not in facts["pair"]["tokenizer"]


def target_of(given: dict[str, Any]) -> Pair:
    """Like generate's, but a target without a tokenizer is a fact, not an end."""
    from reanchor.loading import load_pair

    from .console import say

    hush()
    return load_pair(given["target"], None, dtype=given["dtype"], device=given["device"], say=say)


def joined(pair: Pair, given: dict[str, Any]) -> tuple[Pair, str]:
    """The target with its drafter, or with the name of one that doesn't fit and why."""
    from reanchor.drafters.published import AUTO
    from reanchor.loading import choose, drafter_for

    from .console import say

    named = given["drafter"]
    try:
        named = choose(given["target"], named, say)
        if named is None:
            return pair, ""
        drafter = drafter_for(named, pair.target, given["confidence_threshold"])
    except ValueError as error:
        return replace(pair, drafter_name=None if named == AUTO else named), str(error)
    return replace(pair, drafter=drafter, drafter_name=str(named)), ""


def folder_of(pair: Pair) -> Path | None:
    """Of the drafter, where it has one; that it has none was said when it was loaded."""
    from .experiment import drafter_folder

    try:
        folder = drafter_folder(pair)
    except ValueError:
        return None
    return folder if folder is not None and folder.is_dir() else None


def show(facts: dict[str, dict[str, str]]) -> None:
    """Plain lines, so that they can be piped and pasted into a report."""
    for section, lines in facts.items():
        write(f"{section}\n")
        width = max(map(len, lines), default=0)
        for name, value in lines.items():
            write(f"  {name:<{width}}  {value}\n")
