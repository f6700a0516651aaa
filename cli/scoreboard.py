"""Figures of a run as grids: the papers' own shape, one with everything else, and the studies'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from reanchor.benchmark import costs, paper
from reanchor.benchmark.ablations import ABLATIONS, Ablation
from reanchor.benchmark.answers import unjudged
from reanchor.benchmark.comparison import Contrast
from reanchor.benchmark.costs import Costs
from reanchor.benchmark.report import ALL, Cell, cells
from reanchor.benchmark.results import Results
from reanchor.benchmark.sweep import Sweep, methods_in, parse

from .grid import Grid
from .summary import number, percent

SHOWN = {"hf": "plain (HF generate)", "plain": "plain (our loop)"}


def grids(results: Results) -> list[Grid]:
    """What a results file has to show."""
    found, header = cells(results.records), results.header
    title = f"{header['target']} + {header['drafter']}, {header['dtype']}"
    title += f", {results.state}" if results.state else ""
    if header.get("ablation"):
        return [ablation_grid(found, name, title) for name in [header["ablation"]]]
    shown = [
        main_grid(found, temperature, title) for temperature in dict.fromkeys(c.temperature for c in found)
    ]
    if header.get("sweep"):
        for text in header["sweep"]:
            swept = parse(text, methods_in(header["methods"], parse(text).knob))
            shown += [sweep_grid(found, swept, at) for at in dict.fromkeys(c.temperature for c in found)]
        return [*shown, *cost_grids(costs.from_dict(header["costs"]))]
    return shown + [
        detail_grid(found, dataset, temperature)
        for dataset, temperature in dict.fromkeys((each.dataset, each.temperature) for each in found)
    ]


def main_grid(found: Sequence[Cell], temperature: float, title: str) -> Grid:
    """Datasets across, methods down, tau / speed-up in every cell, the best in bold."""
    chosen = [each for each in found if each.temperature == temperature]
    datasets = list(dict.fromkeys(each.dataset for each in chosen))
    grid = Grid(
        f"{title}, T={temperature:g}: τ / speed-up over plain, ± half a 95 % interval", ["method", *datasets]
    )
    for method in dict.fromkeys(each.method for each in chosen):
        row = []
        for dataset in datasets:
            rivals = [each for each in chosen if each.dataset == dataset]
            one = next((each for each in rivals if each.method == method), None)
            row.append("" if one is None else entry(one, rivals))
        grid.add(SHOWN.get(method, method), *row)
    if {"dflash", "reanchor"} <= {each.method for each in chosen}:
        said = f" (paper {paper.GAIN[temperature]})" if temperature in paper.GAIN else ""
        row = [gain({c.method: c for c in chosen if c.dataset == dataset}) for dataset in datasets]
        grid.add(f"reanchor over dflash{said}", *row)
    return grid


def gain(by: dict[str, Cell]) -> str:
    """How much more shifted blocks give than the baseline block alone, in acceptance length and in speed."""
    pairs = [(getattr(by["reanchor"], name), getattr(by["dflash"], name)) for name in ("tau", "speedup")]
    return " / ".join(f"{ours / theirs - 1:+.1%}" if ours and theirs else "–" for ours, theirs in pairs)


def entry(cell: Cell, rivals: Sequence[Cell]) -> str:
    tau = best(cell, rivals, lambda each: each.tau, f"{number(cell.tau)}{spread(cell.tau_interval)}")
    if cell.faults:
        return f"{tau} / {cell.faults} fault{'s' if cell.faults > 1 else ''}"
    shown = f"{number(cell.speedup)}×{spread(cell.speedup_interval)}"
    return f"{tau} / {best(cell, rivals, lambda each: each.speedup, shown)}"


def best(cell: Cell, rivals: Sequence[Cell], figure: Callable[[Cell], float | None], text: str) -> str:
    values = [value for each in rivals if (value := figure(each)) is not None]
    return f"**{text}**" if values and figure(cell) == max(values) else text


def spread(interval: Any) -> str:
    """Half the width of an interval."""
    return "" if interval is None else f" ±{(interval[1] - interval[0]) / 2:.2f}"


DETAILS: dict[str, Callable[[Cell], str]] = {
    "method": lambda each: SHOWN.get(each.method, each.method),
    "prompts": lambda each: str(each.prompts),
    "tokens": lambda each: str(each.tokens),
    "tokens/s": lambda each: number(each.tokens_per_second, 1),
    "TTFT ms": lambda each: number(each.seconds_to_first_token * 1000, 0),
    "nodes": lambda each: number(each.nodes_per_round, 1),
    "blocks": lambda each: number(each.blocks_per_round, 1),
    "full rounds": lambda each: percent(each.full_rounds),
    "draft assemble verify commit other": lambda each: stages(each.stage_seconds),
    "peak MB": lambda each: "–" if each.peak_memory is None else f"{each.peak_memory / 1e6:.0f}",
    "right answers": lambda each: right(each),
    "ties/faults": lambda each: f"{each.ties}/{each.faults}",
    "break-even τ": lambda each: number(break_even(each)),
}


def detail_grid(found: Sequence[Cell], dataset: str, temperature: float) -> Grid:
    """Everything else about one dataset: methods down."""
    greedy = temperature == 0 and dataset in paper.FULL_ROUNDS  # the paper's are of greedy decoding
    note = f"; the paper has {paper.FULL_ROUNDS[dataset]} full rounds" if greedy else ""
    grid = Grid(f"{dataset}, T={temperature:g}{note}", list(DETAILS))
    for each in found:
        if (each.dataset, each.temperature) == (dataset, temperature):
            grid.add(*(column(each) for column in DETAILS.values()))
    return grid


def stages(seconds: dict[str, float]) -> str:
    total = sum(seconds.values())
    return " ".join(percent(value / total) for value in seconds.values()) if total else "–"


def right(cell: Cell) -> str:
    """The share of what was judged, or why nothing was."""
    if not cell.judged and not cell.cut:
        return "–" if cell.dataset == ALL else unjudged(cell.dataset)
    judged = "" if cell.accuracy is None else f"{cell.accuracy:.0%} of {cell.judged}"
    return ", ".join(part for part in (judged, f"{cell.cut} cut" * bool(cell.cut)) if part)


def break_even(cell: Cell) -> float | None:
    """The acceptance length at which this method's rounds, as long as they are, cost what plain decoding does."""
    return cell.tau / cell.speedup if cell.tau and cell.speedup else None


Row = tuple[str, Callable[[dict[str, Cell]], str], Callable[[dict[str, Cell]], float | None]]


def ablation_grid(found: Sequence[Cell], name: str, title: str) -> Grid:
    """Rows as in the paper, datasets across, their mean, and what the paper's text says."""
    ablation = ABLATIONS[name]
    groups: dict[tuple[str, float], dict[str, Cell]] = {}
    for each in found:
        if each.dataset != ALL:
            groups.setdefault((each.dataset, each.temperature), {})[each.method] = each
    several = len({temperature for _, temperature in groups}) > 1
    columns = [f"{dataset} T={at:g}" if several else dataset for dataset, at in groups]
    grid = Grid(f"{ablation.title}: {title}", ["", *columns, "mean", f"paper ({paper.SETTING})"])
    for row, text, figure in rows_of(ablation):
        known = [value for by in groups.values() if (value := figure(by)) is not None]
        mean = sum(known) / len(known) if known else None
        shown = share(mean) if ablation.shares else number(mean)
        grid.add(row, *(text(by) for by in groups.values()), shown, ablation.paper.get(row, "–"))
    return grid


def rows_of(ablation: Ablation) -> list[Row]:
    """A row's name, its text for the cells of one dataset by method, and the figure whose mean is taken."""
    rows: list[Row] = []
    for each in ablation.shares:
        counted = partial(ratio, variant=ablation.variants[0].name, part=each.part, of=each.of)
        rows.append((each.name, lambda by, counted=counted: share(counted(by)), counted))  # type: ignore[misc]
    for variant in () if ablation.shares else ablation.variants:
        tau = partial(tau_of, name=variant.name, against=ablation.against)
        rows.append((variant.name, partial(tau_text, name=variant.name, against=ablation.against), tau))
    return rows


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def ratio(by: dict[str, Cell], variant: str, part: str, of: str) -> float | None:
    counts = by[variant].counts
    return counts[part] / counts[of] if counts.get(of) else None


def tau_of(by: dict[str, Cell], name: str, against: str | None) -> float | None:
    tau, base = by[name].tau, 0.0 if against is None else by[against].tau
    return None if tau is None or base is None else tau - base


def tau_text(by: dict[str, Cell], name: str, against: str | None) -> str:
    """Acceptance, speed-up, and what it took in nodes."""
    cell, tau = by[name], tau_of(by, name, against)
    speed = f"{cell.faults} faults" if cell.faults else f"{number(cell.speedup)}×"
    interval = spread(cell.tau_interval) if against is None else ""
    return f"{number(tau)}{interval} / {speed} ({number(cell.nodes_per_round, 1)} nodes)"


def sweep_grid(found: Sequence[Cell], sweep: Sweep, temperature: float) -> Grid:
    """Values down; for each method acceptance, speed and the nodes it really used, over all datasets."""
    figures = ("τ", "speed-up", "nodes", "break-even τ")
    grid = Grid(
        f"{sweep.knob}, T={temperature:g}",
        [sweep.knob, *(f"{method} {figure}" for method in sweep.methods for figure in figures)],
    )
    last = {each.method: each for each in found if each.temperature == temperature}  # all datasets come last
    for value in sweep.values:
        row = []
        for method in sweep.methods:
            cell = last[sweep.name(method, value)]
            row += [number(cell.tau), f"{number(cell.speedup)}×", number(cell.nodes_per_round, 1)]
            row.append(number(break_even(cell)))
        grid.add("none" if value is None else str(value), *row)
    return grid


def cost_grids(measured: Costs) -> list[Grid]:
    """The two curves, and the acceptance length that a round of each size must have."""
    blocks = list(measured.draft)
    verify = Grid(
        f"one verify pass behind {measured.context} tokens, and the τ at which a round breaks even",
        ["nodes", "ms", "times one node", *(f"{count} block{'s' * (count > 1)}" for count in blocks)],
    )
    for nodes, seconds in measured.verify.items():
        even = [number(measured.break_even(nodes, count)) for count in blocks]
        verify.add(str(nodes), number(seconds * 1000), number(seconds / measured.verify[1]), *even)
    draft = Grid("one draft", ["blocks", "ms", "times one block"])
    for count, seconds in measured.draft.items():
        draft.add(str(count), number(seconds * 1000), number(seconds / measured.draft[1]))
    return [verify, draft]


def contrast_grid(found: Sequence[Contrast], names: tuple[str, str]) -> Grid:
    """Two runs, method by method; p from a paired test over prompts."""
    grid = Grid(
        f"A: {names[0]}, B: {names[1]}",
        ["dataset, T, method", "prompts", "τ A → B", "p", "tokens/s B/A", "p", "speed-up A → B", "p"],
    )
    for each in found:
        faults = sum(each.faults)
        ups = f"{faults} fault{'s' if faults > 1 else ''}" if faults else "–"
        ups = ups if each.speedups is None else f"{each.speedups[0]:.2f}× → {each.speedups[1]:.2f}×"
        grid.add(
            f"{each.dataset}, {each.temperature:g}, {SHOWN.get(each.method, each.method)}",
            str(each.prompts),
            f"{each.taus[0]:.2f} → {each.taus[1]:.2f}",
            number(each.tau_p, 3),
            number(each.speed_ratio),
            number(each.speed_p, 3),
            ups,
            number(each.speedup_p, 3),
        )
    return grid
