"""Comparison of plain decoding, DFlash and ReAnchor on the same prompt: their figures, and where tokens differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from rich.table import Table

from reanchor.benchmark.gate import common_prefix_length
from reanchor.config import DecodeConfig, Method
from reanchor.loading import Pair

from .decode_run import DecodeRun, Request, run_method
from .summary import figures

METHODS: tuple[Method, ...] = ("plain", "dflash", "reanchor")


def methods(pair: Pair, config: DecodeConfig) -> tuple[Method, ...]:
    """The three, or plain alone without a drafter, and the method asked for when it is another."""
    assert config.method is not None
    shown = METHODS if pair.drafter is not None else ("plain",)
    return shown if config.method in shown else (*shown, config.method)


def warm_up(pair: Pair, request: Request, config: DecodeConfig) -> None:
    """The first passes of a process touch cold weights; that is no method's fault."""
    brief = replace(request, sampling=replace(request.sampling, max_new_tokens=4))
    for method in methods(pair, config):
        run_method(pair, brief, replace(config, method=method))


def run_other_methods(pair: Pair, request: Request, main: DecodeRun) -> dict[str, DecodeRun]:
    """Runs by method, the one already done included, in the order they are shown."""
    configs = {method: replace(main.config, method=method) for method in methods(pair, main.config)}
    return {
        method: main if config == main.config else run_method(pair, request, config)
        for method, config in configs.items()
    }


def difference(pair: Pair, request: Request, plain: DecodeRun, other: DecodeRun) -> str | None:
    """Where two greedy outputs part, the end of the shorter one included, and how close the target's two best tokens
    were there.
    """
    if plain.tokens == other.tokens:
        return None
    same = common_prefix_length(plain.tokens, other.tokens)
    prefix = torch.tensor([request.ids + plain.tokens[:same]], device=pair.target.device)
    with torch.inference_mode():
        logits = pair.target(input_ids=prefix, logits_to_keep=1).logits[0, -1].float()
    first, second = logits.topk(2).values.tolist()
    return f"first difference at {same}, top-2 logit gap {first - second:.3g}"


def verdict(pair: Pair, request: Request, plain: DecodeRun, other: DecodeRun) -> str:
    if request.sampling.temperature > 0:
        if plain.tokens == other.tokens:
            return "yes"
        return "sampled, each run draws anew" if request.sampling.seed is None else "no, sampled"
    return difference(pair, request, plain, other) or "yes"


def table(runs: dict[str, DecodeRun], verdicts: dict[str, str]) -> Table:
    grid = Table(title="the same prompt, by method", title_justify="left")
    grid.add_column("")
    for method in runs:
        grid.add_column(method, justify="right")
    columns = [figures(each) for each in runs.values()]
    for name in columns[0]:
        if name != "time split":
            grid.add_row(name, *(column[name] for column in columns))
    speeds = [each.stats.to_dict(rounds=False)["tokens_per_second"] for each in runs.values()]
    grid.add_row("speed against plain", *(ratio(speed, speeds[0]) for speed in speeds))
    grid.add_row("identical tokens", *(verdicts[method] for method in runs))
    return grid


def ratio(speed: float | None, plain: float | None) -> str:
    return f"{speed / plain:.2f}×" if speed and plain else "–"


def as_object(runs: dict[str, DecodeRun], verdicts: dict[str, str]) -> dict[str, Any]:
    return {method: {**each.to_dict(), "identical_tokens": verdicts[method]} for method, each in runs.items()}
