"""`reanchor bench`: what a method is worth, on prompts of many kinds, gated on equal output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reanchor.config import DecodeConfig, SamplingConfig

from .console import console, say, usage_errors, write
from .options import options, pair_options, take

if TYPE_CHECKING:
    from reanchor.benchmark.results import Results
    from reanchor.benchmark.run import Bench
    from reanchor.datasets import PromptSet

METHODS = ("hf", "plain", "dflash", "reanchor", "ddtree")


@click.command()
@click.option(
    "--dataset", multiple=True, help="A set of prompts by name; may be given again.  [default: demo]"
)
@click.option(
    "--suite", multiple=True, type=click.Choice(("reanchor", "speculators")), help="All sets of a paper."
)
@click.option("--data-dir", help="A folder with NAME.jsonl for every set (fields id, turns, reference).")
@click.option("--prompts", multiple=True, help="An own JSONL file of prompts; may be given again.")
@click.option("--limit", type=int, help="Prompts of every set.  [default: 100; whole AIME25 and MT-Bench]")
@click.option("--choice-seed", default=0, show_default=True, help="Seed of the choice of prompts.")
@click.option("--temperature", default="0", show_default=True, help="One or several, like 0,1.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(METHODS),
    help="Who is measured; may be given again.  [default: all]",
)
@click.option(
    "--peer", "peers", multiple=True, type=click.Choice(("prompt-lookup", "zlab")), help="And who else."
)
@click.option("--raw", is_flag=True, help="Send prompts as they are, without the chat template.")
@click.option("--thinking/--no-thinking", default=None, help="Thinking mode.  [default: off where known]")
@pair_options
@click.option("--max-new-tokens", default=128, show_default=True, help="Tokens of every answer.")
@options(SamplingConfig, without=("max_new_tokens", "temperature"))
@options(DecodeConfig, without=("method",))
@click.option(
    "--output", help="The results file; an interrupted run goes on with it.  [default: a name of its own]"
)
@click.option("--json", "as_json", is_flag=True, help="Print figures as one JSON object.")
def bench(**given: Any) -> None:
    """Measure plain decoding, DFlash, ReAnchor and ddtree side by side on the same prompts.

    Exits with 1 when a greedy output differs from plain decoding and rounding can't explain it.
    """
    with usage_errors():
        results = measured(given)
        if tell(results, given):
            raise click.exceptions.Exit(1)


def measured(given: dict[str, Any]) -> Results:
    """The results of the run that the options describe, finished."""
    from .contest import Terms, bench_of, contestants_of, header_of, output_path, prompt_sets, temperatures_of
    from .generate import load, warn_of_thinking

    temperatures, sets = temperatures_of(given["temperature"]), prompt_sets(given)
    decode = take(DecodeConfig, given)
    seed = 0 if given["seed"] is None else given["seed"]
    sampling = SamplingConfig(given["max_new_tokens"], 0.0, given["top_p"], given["top_k"], seed)
    terms = Terms(
        given["target"],
        tuple(method for method in METHODS if method in (given["methods"] or METHODS)),
        tuple(dict.fromkeys(given["peers"])),
        decode,
        sampling,
        temperatures,
        given["raw"],
        given["thinking"],
    )
    with console.status("Loading"):
        pair = load(decode, {**given, "compare": False})
    warn_of_thinking(pair, given)
    header = header_of(pair, terms, sets)
    path = Path(given["output"]).expanduser() if given["output"] else output_path(header)
    return carry_out(bench_of(pair, terms, contestants_of(pair, terms)), sets, temperatures, path, header)


def carry_out(
    bench: Bench, sets: list[PromptSet], temperatures: tuple[float, ...], path: Path, header: dict[str, Any]
) -> Results:
    """Run what the file does not hold yet, a line a prompt."""
    from reanchor.benchmark.results import open_results

    from .progress import Progress

    results = open_results(path, header)
    total = sum(len(each.prompts) for each in sets) * len(temperatures)
    if results.records:
        say(f"{path} holds {len(results.records)} of {total} prompts; the rest is measured now")
    else:
        say(f"Results go to {path}")
    with Progress(total, results) as progress:
        for record in bench.run(sets, temperatures, results.done):
            results.append(record)
            progress.advance()
            for each in record.differences:
                say(f"{record.dataset} {record.id}: {each}")
    return results


def tell(results: Results, given: dict[str, Any]) -> int:
    """Print the figures; the number of faults."""
    from rich.console import Console

    from reanchor.benchmark.report import cells

    from .scoreboard import detail_table, main_table

    found = cells(results.records)
    if given["as_json"]:
        figures = {"header": results.header, "cells": [each.to_dict() for each in found]}
        write(json.dumps(figures, ensure_ascii=False) + "\n")
    paper = console if given["as_json"] else Console(highlight=False)
    if not paper.is_terminal:
        paper.width = 200
    title = f"{results.header['target']} + {results.header['drafter']}, {results.header['dtype']}"
    for temperature in dict.fromkeys(each.temperature for each in found):
        paper.print(main_table(found, temperature, title))
    for dataset, temperature in dict.fromkeys((each.dataset, each.temperature) for each in found):
        paper.print(detail_table(found, dataset, temperature))
    return sum(each.fault for record in results.records for each in record.differences)
