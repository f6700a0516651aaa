"""`reanchor bench --analysis`: what rejected states do for a Carryover drafter, as tables, JSON and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reanchor.datasets import PromptSet
from reanchor.drafters.block import BlockDrafter
from reanchor.loading import Pair, drafter_for
from reanchor.target import end_ids
from reanchor.training import diagnostics, pictures
from reanchor.training.observation import CARRIED, ObservedDecode, acceptance_length, observe

from .console import console, say, write
from .data_table import DataTable
from .experiment import conversation_of, prompt_sets
from .generate import load
from .output import emit_tables

Rows = list[dict[str, Any]]
Tables = dict[str, Rows]
COMPARED = ("recall", "reconvergence", "carried")  # with a baseline
TITLES = {
    "recall": "Recall of the target's tokens at the same anchors",
    "reconvergence": "Local gain of carried rows by re-convergence count",
    "datasets": "Rejected rounds by dataset",
    "ceiling": "What the rejected branch could add at best, by position",
    "normalised": "Rejected rounds over the baseline's acceptance length, and its gain",
    "attention": "Share of attention on carried rows",
    "carried": "Acceptance length by what is carried over",
}


def refuse_unread(given: dict[str, Any], terms: Any) -> None:
    """ValueError for an option of `reanchor bench` that an analysis, which decodes greedy chains, would pass over."""
    unread = {
        "--method": given["methods"],
        "--peer": given["peers"],
        "--ablation": given["ablation"],
        "--sweep": given["sweeps"],
        "--output": given["output"],
        "--csv": given["form"] == "csv",
        "--temperature": any(terms.temperatures),
    }
    for name, there in unread.items():
        if there:
            raise ValueError(f"{name} has no part in --analysis: leave it out")
    if given["baseline"] is not None and given["analysis"] not in COMPARED:
        raise ValueError(
            f"--analysis {given['analysis']} compares with no --baseline; {' and '.join(COMPARED)} do"
        )


def analyse(given: dict[str, Any], terms: Any) -> None:
    refuse_unread(given, terms)
    with console.status("Loading"):
        pair = load(terms.decode, {**given, "compare": False})
        baseline = None if given["baseline"] is None else drafter_for(given["baseline"], pair.target)
    if pair.drafter is None or not getattr(pair.drafter, "carryover", False):
        raise ValueError(
            "--analysis needs a drafter that reads rejected states: give --drafter one of `reanchor train carryover`"
        )
    check_fit(pair, baseline)
    tables = MAKERS[given["analysis"]](pair, prompt_sets(given), terms, baseline)
    if given["form"] == "json":
        write(json.dumps({"analysis": given["analysis"], "tables": tables}) + "\n")
    else:
        emit_tables([grid(TITLES[name], rows) for name, rows in tables.items()], given["form"] == "markdown")
    if given["plots"]:
        for path in pictures.draw_analysis(tables, Path(given["plots"]).expanduser()):
            say(f"drew {path}")


def check_fit(pair: Pair, baseline: Any) -> None:
    """The three are compared at the same anchors over the same features."""
    if baseline is None:
        return
    for name in ("tap_layers", "proposals"):
        ours, theirs = getattr(pair.drafter, name), getattr(baseline, name)
        if ours != theirs:
            raise ValueError(
                f"the baseline has {name} {theirs}, the drafter {ours}: give the one it continues"
            )


def openings(pair: Pair, sets: list[PromptSet], terms: Any) -> dict[str, list[list[int]]]:
    """Every set's first turns, those left out that leave no room for an answer."""
    bench = terms.bench(pair, conversation_of(pair, terms), ())
    unfit = bench.unfit(sets)
    if unfit:
        say(f"skipped for the length of their first turn: {', '.join(each.id for each in unfit)}")
    fit = {each.name: [prompt for prompt in each.prompts if prompt not in unfit] for each in sets}
    return {name: [bench.opening(prompt) for prompt in prompts] for name, prompts in fit.items() if prompts}


def watched(pair: Pair, sets: list[PromptSet], terms: Any) -> dict[str, list[ObservedDecode]]:
    """Greedy decodes of every set's prompts, first turns only."""
    ends = end_ids(pair.target)
    found: dict[str, list[ObservedDecode]] = {}
    for name, prompts in openings(pair, sets, terms).items():
        found[name] = []
        for place, ids in enumerate(prompts, 1):
            one = observe(pair.target, drafter_of(pair), ids, terms.sampling.max_new_tokens, ends)
            found[name] += [] if one is None else [one]
            say(f"{name}: {place}/{len(prompts)} prompts decoded")
    return found


def taus(
    pair: Pair, sets: list[PromptSet], terms: Any, chains: dict[str, tuple[Any, str]]
) -> dict[str, dict[str, float]]:
    """Acceptance length of greedy chains, by set and by name. chains: a drafter and what it carries over"""
    found: dict[str, dict[str, float]] = {}
    for dataset, prompts in openings(pair, sets, terms).items():
        row = found[dataset] = {"prompts": len(prompts)}
        for name, (drafter, kind) in chains.items():
            row[name] = acceptance_length(
                pair.target, drafter, prompts, terms.sampling.max_new_tokens, end_ids(pair.target), kind
            )
            say(f"{dataset}: {name} {row[name]:.3f}")
    return found


def carried(pair: Pair, sets: list[PromptSet], terms: Any, baseline: Any) -> Tables:
    """One row a set: tau of chains that carry nothing, bare states, or states with the embedding."""
    chains: dict[str, tuple[Any, str]] = {} if baseline is None else {"baseline": (baseline, "nothing")}
    chains |= {kind: (pair.drafter, kind) for kind in CARRIED}
    found = taus(pair, sets, terms, chains)
    return {"carried": [{"dataset": dataset, **row} for dataset, row in found.items()]}


def recall(pair: Pair, sets: list[PromptSet], terms: Any, baseline: Any) -> Tables:
    seen = [one for some in watched(pair, sets, terms).values() for one in some]
    return {"recall": diagnostics.recall(seen, drafter_of(pair), baseline)}


def reconvergence(pair: Pair, sets: list[PromptSet], terms: Any, baseline: Any) -> Tables:
    """Local gains by R; with a baseline, what its acceptance length gains, too."""
    seen = watched(pair, sets, terms)
    rounds = {name: diagnostics.rejected_rounds(some, drafter_of(pair)) for name, some in seen.items()}
    everything = [row for rows in rounds.values() for row in rows]
    tables = {
        "reconvergence": diagnostics.by_reconvergence(everything),
        "datasets": diagnostics.by_dataset(rounds),
        "ceiling": diagnostics.ceiling([one for some in seen.values() for one in some], drafter_of(pair)),
    }
    if baseline is not None:
        chains = {"baseline": (baseline, "nothing"), "carryover": (pair.drafter, CARRIED[-1])}
        found = taus(pair, sets, terms, chains)
        both = {name: (row["baseline"], row["carryover"]) for name, row in found.items()}
        tables["normalised"] = diagnostics.normalised(rounds, both)
    return tables


def attention(pair: Pair, sets: list[PromptSet], terms: Any, _baseline: Any) -> Tables:
    seen = [one for some in watched(pair, sets, terms).values() for one in some]
    return {"attention": diagnostics.attention(seen, drafter_of(pair))}


def drafter_of(pair: Pair) -> BlockDrafter:
    """Only block drafters have been found to read rejected states by now."""
    assert isinstance(pair.drafter, BlockDrafter)
    return pair.drafter


MAKERS: dict[str, Callable[[Pair, list[PromptSet], Any, Any], Tables]] = {
    "recall": recall,
    "reconvergence": reconvergence,
    "attention": attention,
    "carried": carried,
}


def grid(title: str, rows: Rows) -> DataTable:
    columns = list(rows[0]) if rows else ["nothing was observed"]
    made = DataTable(title, columns)
    for row in rows:
        made.add(*(cell(row[name]) for name in columns))
    return made


def cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
