"""Figures of a run as grids: the papers' own shape, one with everything else, and every difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reanchor.benchmark import paper, pass_latency
from reanchor.benchmark.ablations import ABLATIONS
from reanchor.benchmark.aggregation import ALL, Cell, cells
from reanchor.benchmark.answers import unjudged
from reanchor.benchmark.comparison import Contrast
from reanchor.benchmark.findings import break_even, gains
from reanchor.benchmark.results import Results
from reanchor.benchmark.sweep import methods_in, parse

from .cells import SHOWN, entry, shown, speed, spread
from .data_table import DataTable
from .studies import ablation_grids, cost_grids, sweep_grid
from .summary import number, percent

SCREENFUL = 20  # differences that a terminal is given


def grids(results: Results, named: bool = False) -> list[DataTable]:
    """What a results file has to show; `named` where tables of several files stand together."""
    found, header = cells(results.records), results.header
    title = f"{header['target']} + {header['drafter']}, {header['dtype']}"
    title += f", {results.state}" if results.state else ""
    title = f"{results.path.name}: {title}" if named else title
    temperatures = list(dict.fromkeys(each.temperature for each in found))
    parts = list(dict.fromkeys((each.dataset, each.temperature) for each in found))
    after = difference_grids(results)
    if header.get("ablation"):
        made = ablation_grids(found, ABLATIONS[header["ablation"]], title)
        return [*made, *overall(found), *after]
    made = [main_grid(found, temperature, title) for temperature in temperatures]
    if header.get("sweep"):
        for text in header["sweep"]:
            swept = parse(text, methods_in(header["methods"], parse(text).knob))
            made += [sweep_grid(found, swept, at) for at in temperatures]
        return [*made, *overall(found), *cost_grids(pass_latency.from_dict(header["costs"])), *after]
    return [*made, *(detail_grid(found, dataset, temperature) for dataset, temperature in parts), *after]


def main_grid(found: Sequence[Cell], temperature: float, title: str) -> DataTable:
    """Datasets across, methods down, tau / speed-up in every cell, the best in bold."""
    chosen = [each for each in found if each.temperature == temperature]
    datasets = list(dict.fromkeys(each.dataset for each in chosen))
    grid = DataTable(f"{title}, T={temperature:g}: τ / speed-up over plain", ["method", *datasets])
    by = {(each.method, each.dataset): each for each in chosen}
    for method in dict.fromkeys(each.method for each in chosen):
        row = []
        for dataset in datasets:
            rivals = [each for each in chosen if each.dataset == dataset]
            one = by.get((method, dataset))
            row.append("" if one is None else entry(one, rivals, lambda each: each.tau))
        grid.add(shown(method), *row)
    more = {each.dataset: each for each in gains(chosen)}
    if more:
        sums = {name: f"{gain(each.tau)} / {gain(each.speedup)}" for name, each in more.items()}
        grid.add("reanchor over dflash", *(sums.get(name, "") for name in datasets))
    if more and temperature in paper.GAIN:
        grid.notes.append(f"The paper has reanchor over dflash at {paper.GAIN[temperature]}.")
    return grid


def gain(part: float | None) -> str:
    return "–" if part is None else f"{part:+.1%}"


DETAILS: dict[str, Callable[[Cell], str]] = {
    "method": lambda each: shown(each.method),
    "prompts": lambda each: str(each.prompts),
    "τ": lambda each: f"{number(each.tau)}{spread(each.tau_interval)}",
    "speed-up": lambda each: f"{speed(each)}{spread(each.speedup_interval)}",
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


def detail_grid(found: Sequence[Cell], dataset: str, temperature: float) -> DataTable:
    """Everything else about one dataset: methods down."""
    greedy = temperature == 0 and dataset in paper.FULL_ROUNDS  # the paper's are of greedy decoding
    note = f"; the paper has {paper.FULL_ROUNDS[dataset]} full rounds" if greedy else ""
    grid = DataTable(f"{dataset}, T={temperature:g}, ± half a 95 % interval{note}", list(DETAILS))
    for each in found:
        if (each.dataset, each.temperature) == (dataset, temperature):
            grid.add(*(column(each) for column in DETAILS.values()))
    return grid


def overall(found: Sequence[Cell]) -> list[DataTable]:
    """Everything else about the datasets together, which come last."""
    last = {each.temperature: each.dataset for each in found}
    return [detail_grid(found, dataset, temperature) for temperature, dataset in last.items()]


def stages(seconds: dict[str, float]) -> str:
    total = sum(seconds.values())
    return " ".join(percent(value / total) for value in seconds.values()) if total else "–"


def right(cell: Cell) -> str:
    """The share of what was judged, or why nothing was."""
    if not cell.judged and not cell.cut:
        return "–" if cell.dataset == ALL else unjudged(cell.dataset)
    judged = "" if cell.accuracy is None else f"{cell.accuracy:.0%} of {cell.judged}"
    return ", ".join(part for part in (judged, f"{cell.cut} cut" * bool(cell.cut)) if part)


def difference_grids(results: Results) -> list[DataTable]:
    """Every difference to plain decoding, faults first; nothing where there is none."""
    found = [(record, each) for record in results.records for each in record.differences]
    if not found:
        return []
    faults = sum(each.fault for _, each in found)
    grid = DataTable(
        f"{len(found)} outputs that differ from plain decoding: {len(found) - faults} ties, {faults} faults",
        ["prompt", "method", "turn", "token", "gap", "loss", "noise", "kind"],
        keys=2,
        most=max(SCREENFUL, faults),
    )
    for record, each in sorted(found, key=lambda pair: not pair[1].fault):
        figures = ["–" if value is None else f"{value:.3g}" for value in (each.gap, each.loss, each.noise)]
        place = f"{record.dataset} {record.id}" + (f" T={record.temperature:g}" if record.temperature else "")
        kind = "fault" if each.fault else "tie"
        grid.add(place, shown(each.method), str(each.turn + 1), str(each.index), *figures, kind)
    grid.notes.append(
        "token: the first that differs, from 0. gap: between the two best logits there. loss: of the worse of the two "
        "tokens against the best; a tie where it is within the noise."
    )
    return [grid]


def contrast_grid(found: Sequence[Contrast], names: tuple[str, str]) -> DataTable:
    """Two runs, method by method; p from a paired test over prompts."""
    grid = DataTable(
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
            chance(each.tau_p),
            number(each.speed_ratio),
            chance(each.speed_p),
            ups,
            chance(each.speedup_p),
        )
    return grid


def chance(p: float | None) -> str:
    """A p-value; no test gives zero."""
    return "<0.001" if p is not None and p < 0.0005 else number(p, 3)
