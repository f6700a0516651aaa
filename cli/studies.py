"""Ablations and sweeps as grids."""

from __future__ import annotations

from collections.abc import Sequence

from reanchor.benchmark import paper
from reanchor.benchmark.ablations import Ablation
from reanchor.benchmark.aggregation import Cell
from reanchor.benchmark.findings import MEAN, AblationResult, break_even, findings
from reanchor.benchmark.pass_latency import PassLatency
from reanchor.benchmark.sweep import Sweep, worded
from reanchor.methods import METHODS

from .cells import entry, speed
from .data_table import DataTable
from .summary import number


def ablation_grids(found: Sequence[Cell], ablation: Ablation, title: str) -> list[DataTable]:
    """One a temperature: rows as in the paper, datasets across, their mean, and what the paper's text says."""
    every = findings(found, ablation)
    return [
        ablation_grid(found, [each for each in every if each.temperature == temperature], ablation, title)
        for temperature in dict.fromkeys(each.temperature for each in every)
    ]


def ablation_grid(
    found: Sequence[Cell], rows: Sequence[AblationResult], ablation: Ablation, title: str
) -> DataTable:
    temperature = rows[0].temperature
    datasets = list(dict.fromkeys(each.dataset for each in rows))
    compared = temperature == paper.TEMPERATURE
    said = compared and bool(ablation.paper)
    grid = DataTable(f"{ablation.title}: {title}, T={temperature:g}", ["", *datasets, *["paper"] * said])
    for name in dict.fromkeys(each.row for each in rows):
        own = [each for each in rows if each.row == name]
        texts = [share_text(each) if ablation.shares else length_text(each, rows, found) for each in own]
        grid.add(name, *texts, *[own[-1].paper or "–"] * said)
    what = "share (its two counts)" if ablation.shares else "acceptance / speed-up over plain"
    grid.notes.append(f"Cells: {what}. {MEAN}: of the sets, each counted once.")
    if compared:
        words = "what its text says of the mean" if said else "its text has no number"
        grid.notes.append(f"paper ({paper.SETTING}): {words}; its tables give more.")
    return grid


def share_text(each: AblationResult) -> str:
    shown = "–" if each.value is None else f"{each.value:.1%}"
    return shown if each.of is None else f"{shown} ({each.part}/{each.of})"


def length_text(each: AblationResult, rows: Sequence[AblationResult], found: Sequence[Cell]) -> str:
    """The acceptance length, or by how much it is longer, and the speed; a mean has no speed."""
    rivals = {other.row: other.value for other in rows if other.dataset == each.dataset}
    if each.dataset == MEAN:
        best = max((value for value in rivals.values() if value is not None), default=None)
        return f"**{number(each.value)}**" if each.value == best is not None else number(each.value)
    cells = [
        cell
        for cell in found
        if (cell.dataset, cell.temperature) == (each.dataset, each.temperature) and cell.method in rivals
    ]
    own = next(cell for cell in cells if cell.method == each.row)
    return entry(own, cells, lambda cell: rivals[cell.method])


def sweep_grid(found: Sequence[Cell], sweep: Sweep, temperature: float) -> DataTable:
    """Values down; for each method acceptance, speed and the nodes it really used, over all datasets."""
    figures = ("τ", "speed-up", "nodes", "break-even τ")
    grid = DataTable(
        f"{sweep.knob}, T={temperature:g}",
        [sweep.knob, *(f"{method} {figure}" for method in sweep.methods for figure in figures)],
    )
    last = {each.method: each for each in found if each.temperature == temperature}  # all datasets come last
    for value in sweep.values:
        row: list[str] = []
        for method in sweep.methods:
            cell = last.get(sweep.name(method, value))
            row += ["–"] * len(figures) if cell is None else sweep_texts(cell)
        grid.add(worded(value), *row)
    if sweep.knob == "max_nodes" and None in sweep.values and "ddtree" in sweep.methods:
        grid.notes.append(
            f"ddtree without a budget of ours has its own: {METHODS['ddtree'].default_nodes} nodes."
        )
    return grid


def sweep_texts(cell: Cell) -> list[str]:
    return [number(cell.tau), speed(cell), number(cell.nodes_per_round, 1), number(break_even(cell))]


def cost_grids(measured: PassLatency) -> list[DataTable]:
    """The two curves, and the acceptance length that a round of each size must have."""
    blocks = list(measured.draft)
    verify = DataTable(
        f"one verify pass behind {measured.context} tokens, and the τ at which a round breaks even",
        ["nodes", "ms", "times one node", *(f"{count} block{'s' * (count > 1)}" for count in blocks)],
    )
    for nodes, seconds in measured.verify.items():
        even = [number(measured.break_even(nodes, count)) for count in blocks]
        verify.add(str(nodes), number(seconds * 1000), number(seconds / measured.verify[1]), *even)
    draft = DataTable("one draft", ["blocks", "ms", "times one block"])
    for count, seconds in measured.draft.items():
        draft.add(str(count), number(seconds * 1000), number(seconds / measured.draft[1]))
    return [verify, draft]
