"""`reanchor bench`: what a method is worth, on prompts of many kinds, gated on equal output."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reanchor.config import DecodeConfig, SamplingConfig
from reanchor.files import named_path

from .console import be_quiet, say, usage_errors, waiting
from .options import config_from, options, pair_options

if TYPE_CHECKING:
    from reanchor.benchmark.harness import Bench
    from reanchor.benchmark.results import Results
    from reanchor.datasets import PromptSet

    from .experiment import RunSpec

METHODS = ("hf", "plain", "dflash", "reanchor", "ddtree", "auto", "carryover", "carryover-reanchor")
INTERRUPTED = 130  # as a shell has it
STUDIES = ("components", "attach", "scope", "alignment", "earliest", "agreement")


@click.command()
@click.argument("files", nargs=-1)
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
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS),
              help="Who is measured; may be given again.  [default: all that the drafter allows]")  # fmt: skip
@click.option(
    "--peer", "peers", multiple=True, type=click.Choice(("prompt-lookup", "zlab")), help="And who else."
)
@click.option("--ablation", type=click.Choice(STUDIES), help="One of the paper's ablations instead.")
@click.option("--sweep", "sweeps", multiple=True,
              help="A knob over values, like max_nodes=8,16,none, for the methods given.")  # fmt: skip
@click.option("--raw", is_flag=True, help="Send prompts as they are, without the chat template.")
@click.option("--thinking/--no-thinking", default=None, help="Thinking mode.  [default: off where known]")
@pair_options
@click.option("--max-new-tokens", default=128, show_default=True, help="Tokens of every answer.")
@click.option(
    "--seed", default=0, show_default=True, help="Seed of sampling; every prompt has its own of it."
)
@options(SamplingConfig, without=("max_new_tokens", "temperature", "seed"))
@options(DecodeConfig, without=("method", "carryover"))
@click.option(
    "--output", help="The results file; an interrupted run goes on with it.  [default: its own name]"
)
@click.option("--quiet", is_flag=True, is_eager=True, callback=be_quiet, expose_value=False,
              help="Only the figures: no progress, no notes.")  # fmt: skip
@click.option("--report", is_flag=True, help="Measure nothing: show results FILES again, and compare two.")
@click.option("--json", "form", flag_value="json", help="Print figures as one JSON object.")
@click.option("--csv", "form", flag_value="csv", help="Print figures as CSV.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the tables as Markdown.")
@click.option("--plots", help="Draw the figures as PNG files into this folder.")
def bench(**given: Any) -> None:
    """Measure plain decoding, DFlash, ReAnchor and ddtree side by side on the same prompts.

    Exits with 1 when a greedy output differs from plain decoding and rounding can't explain it; so does --report.
    """
    from .output import emit

    with usage_errors():
        if given["files"] and not given["report"]:
            raise ValueError(f"what is {given['files'][0]}? Results are shown with --report FILE")
        try:
            runs = read_runs(given["files"]) if given["report"] else [measured(given)]
        except KeyboardInterrupt:
            say("Interrupted" + "; the same command goes on where it stopped" * (not given["report"]))
            raise click.exceptions.Exit(INTERRUPTED) from None
        if given["report"]:
            check_pictures(given["plots"])
        faults = emit(runs, given["form"], given["plots"])
    if faults:
        raise click.exceptions.Exit(1)


def check_pictures(folder: str | None) -> None:
    """ValueError when pictures could not be drawn there, before anything is measured for them."""
    if folder is None:
        return
    from reanchor.benchmark.plots import INSTALL

    if find_spec("matplotlib") is None:
        raise ValueError(f"plots need matplotlib: {INSTALL}")
    try:
        named_path(folder, "--plots").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"pictures cannot be drawn into {folder} ({error.strerror}); give --plots a folder"
        ) from error


def read_runs(files: tuple[str, ...]) -> list[Results]:
    from reanchor.benchmark.results import read_results

    if not files:
        raise ValueError("--report shows results files; name one, or two to compare")
    return [read_results(named_path(file, "a results file")) for file in files]


def measured(given: dict[str, Any]) -> Results:
    """The results of the run that the options describe, finished."""
    from reanchor.benchmark.results import is_new
    from reanchor.lock import locked

    from .experiment import (
        conversation_of,
        engines_of,
        experiment,
        header_of,
        methods_of,
        output_path,
        prompt_sets,
    )
    from .generate import load, warn_of_thinking

    study = experiment(given)
    sets, terms = prompt_sets(given), run_spec(given)
    with waiting("Loading"):
        pair = load(terms.decode, {**given, "compare": False})
    warn_of_thinking(pair, {**given, "thinking": bool(given["thinking"])})
    conversation = conversation_of(pair, terms)
    methods = methods_of(pair, terms, study)
    header = header_of(pair, terms, sets, **study.header(), methods=[each.name for each in methods])
    path = named_path(given["output"], "--output") if given["output"] is not None else output_path(header)
    header["engines"] = engines_of(methods)
    bench = terms.bench(pair, conversation, methods)
    unfit = bench.unfit(sets)
    with locked(path):
        check_pictures(given["plots"])
        if study.sweeps and is_new(path):
            first = next(each for every in sets for each in every.prompts if each not in unfit)
            header["costs"] = study.costs(pair, terms, bench.opening(first)).to_dict()
        if unfit:
            say(f"skipped for the length of their first turn: {', '.join(each.id for each in unfit)}")
        return run_experiment(bench, sets, path, header)


def run_spec(given: dict[str, Any]) -> RunSpec:
    from .experiment import RunSpec, temperatures_of

    return RunSpec(
        given["target"],
        tuple(method for method in METHODS if method in given["methods"]),
        tuple(dict.fromkeys(given["peers"])),
        config_from(DecodeConfig, {**given, "method": "dflash"}),
        SamplingConfig(given["max_new_tokens"], 0.0, given["top_p"], given["top_k"], given["seed"]),
        temperatures_of(given["temperature"]),
        given["raw"],
        given["thinking"],
        given["confidence_threshold"],
        given["limit"],
        given["choice_seed"],
    )


def run_experiment(bench: Bench, sets: list[PromptSet], path: Path, header: dict[str, Any]) -> Results:
    """Run what the file does not hold yet, a line a prompt."""
    from reanchor.benchmark.results import open_results
    from reanchor.benchmark.skip import Skip

    from .progress import Progress

    results = open_results(path, header)
    total = results.total or 0
    if results.done:
        say(f"{path} holds {len(results.done)} of {total} prompts; the rest is measured now")
    else:
        say(f"Results go to {path}")
    with Progress(total - len(results.skips), results) as progress:
        for each in bench.run(sets, header["temperatures"], results.done):
            results.append(each)
            if isinstance(each, Skip):
                say(f"{each.dataset} {each.id}: skipped, {each.skipped}")
                continue
            progress.advance(each)
            for difference in each.differences:
                say(f"{each.dataset} {each.id}: {difference}")
    return results
