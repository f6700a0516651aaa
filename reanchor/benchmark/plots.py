"""Figures of a run as pictures. It needs matplotlib, which is imported here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from reanchor.benchmark.record import Record
from reanchor.benchmark.report import ALL, PLAIN, Cell, cells
from reanchor.stats import Stats

INSTALL = "pip install 'reanchor-decoding[bench]'"
COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """Every picture of every temperature, as PNG files in `folder`."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError(f"plots need matplotlib: {INSTALL}") from error
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    found = cells(records)
    for temperature in dict.fromkeys(each.temperature for each in found):
        these = [each for each in found if each.temperature == temperature]
        own = [each for each in records if each.temperature == temperature]
        pictures: dict[str, Callable[[Any], bool]] = {
            "acceptance-lengths": partial(histogram, found=whole(these)),
            "position-acceptance": partial(positions, found=whole(these)),
            "tau": partial(bars, found=these, name="tau", label="acceptance length τ"),
            "speedup": partial(bars, found=these, name="speedup", label="speed-up over plain"),
            "time-split": partial(split, found=whole(these)),
            "nodes-accepted": partial(nodes_accepted, records=own),
            "reliability": partial(reliability, records=own),
        }
        drawn += [
            path
            for name, picture in pictures.items()
            if (path := save(picture, folder / f"{name}-T{temperature:g}.png"))
        ]
    return drawn


def save(picture: Callable[[Any], bool], path: Path) -> Path | None:
    """None when there was nothing to draw."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    if not picture(figure):
        return None
    figure.savefig(path, dpi=120)
    return path


def whole(found: Sequence[Cell]) -> list[Cell]:
    """The speculative methods over all datasets."""
    together = [each for each in found if each.dataset == ALL] or list(found)
    return [each for each in together if each.method not in PLAIN and each.histogram]


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def histogram(figure: Any, found: Sequence[Cell]) -> bool:
    """Share of rounds by tokens committed (paper's Figure 2)."""
    if not found:
        return False
    axes = figure.subplots()
    width = 0.8 / len(found)
    longest = max(max(each.histogram) for each in found)
    for index, each in enumerate(found):
        rounds = sum(each.histogram.values())
        places = [length + (index - (len(found) - 1) / 2) * width for length in range(1, longest + 1)]
        shares = [each.histogram.get(length, 0) / rounds for length in range(1, longest + 1)]
        axes.bar(places, shares, width, color=colour(index), label=f"{each.method} (τ {each.tau:.2f})")
    axes.set(xlabel="tokens committed in a round, bonus included", ylabel="share of rounds")
    axes.set_xticks(range(1, longest + 1))
    axes.legend()
    return True


def positions(figure: Any, found: Sequence[Cell]) -> bool:
    """Acceptance of the draft at a depth, given that all before it were accepted."""
    found = [each for each in found if each.position_rates]
    if not found:
        return False
    axes = figure.subplots()
    for index, each in enumerate(found):
        depths = range(1, len(each.position_rates) + 1)
        axes.plot(depths, each.position_rates, marker="o", color=colour(index), label=each.method)
    axes.set(xlabel="depth of the draft", ylabel="accepted, given all before", ylim=(0, 1.02))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    return True


def bars(figure: Any, found: Sequence[Cell], name: str, label: str) -> bool:
    """A figure by dataset and method, with its 95 % interval."""
    found = [each for each in found if each.method not in PLAIN and getattr(each, name) is not None]
    if not found:
        return False
    axes = figure.subplots()
    datasets = list(dict.fromkeys(each.dataset for each in found))
    methods = list(dict.fromkeys(each.method for each in found))
    width = 0.8 / len(methods)
    for index, method in enumerate(methods):
        those = [each for each in found if each.method == method]
        places = [datasets.index(each.dataset) + (index - (len(methods) - 1) / 2) * width for each in those]
        values = [getattr(each, name) for each in those]
        errors = [spread(each, name) for each in those]
        axes.bar(places, values, width, color=colour(index), label=method)
        axes.errorbar(places, values, list(zip(*errors, strict=True)), fmt="none", ecolor="black", capsize=2)
    axes.axhline(1.0, color="grey", linewidth=0.8, linestyle="--")
    axes.set(ylabel=label)
    axes.set_xticks(range(len(datasets)), datasets, rotation=30 if len(datasets) > 5 else 0)
    axes.legend()
    return True


def spread(each: Cell, name: str) -> tuple[float, float]:
    """How far the interval reaches below and above."""
    value, interval = getattr(each, name), getattr(each, f"{name}_interval")
    return (
        (0.0, 0.0) if interval is None else (max(0.0, value - interval.low), max(0.0, interval.high - value))
    )


def split(figure: Any, found: Sequence[Cell]) -> bool:
    """Where the time of a round goes."""
    found = [each for each in found if each.stage_seconds and each.rounds]
    if not found:
        return False
    axes = figure.subplots()
    left = [0.0] * len(found)
    for index, stage in enumerate(found[0].stage_seconds):
        widths = [each.stage_seconds[stage] / each.rounds * 1000 for each in found]
        axes.barh([each.method for each in found], widths, left=left, color=colour(index), label=stage)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds a round")
    axes.legend()
    return True


def nodes_accepted(figure: Any, records: Sequence[Record]) -> bool:
    """Mean tokens of a round against the nodes it verified; an area says how many rounds."""
    axes = figure.subplots()
    drawn = False
    names = [name for name in records[0].methods if name not in PLAIN]
    for index, method in enumerate(names):
        rounds = [
            each for record in records for outcome in record.outcomes(method) for each in outcome.rounds
        ]
        if not rounds:  # a loop that is not ours tells nothing of its rounds
            continue
        groups: dict[int, list[int]] = {}
        for each in rounds:
            groups.setdefault(each.nodes, []).append(each.tokens)
        nodes = sorted(groups)
        means = [sum(groups[count]) / len(groups[count]) for count in nodes]
        sizes = [10 + 300 * len(groups[count]) / len(rounds) for count in nodes]
        axes.scatter(nodes, means, sizes, color=colour(index), alpha=0.6, label=method)
        drawn = True
    axes.set(xlabel="nodes verified in a round", ylabel="mean tokens committed")
    axes.legend(markerscale=0.6)
    return drawn


def reliability(figure: Any, records: Sequence[Record]) -> bool:
    """Method auto: how often edges of a price were taken, and tokens committed against tokens expected."""
    rounds = [
        each
        for record in records
        if "auto" in record.methods
        for outcome in record.outcomes("auto")
        for each in outcome.rounds
    ]
    bins = Stats("auto", rounds=rounds).reliability()
    if not bins:
        return False
    edges, tokens = figure.subplots(1, 2)
    edges.scatter(
        [each["price"] for each in bins],
        [each["taken"] for each in bins],
        [20 + 300 * each["edges"] / sum(each["edges"] for each in bins) for each in bins],
    )
    edges.plot([0, 1], [0, 1], color="grey", linewidth=1)
    edges.set(xlabel="price of an edge", ylabel="share taken by the target")
    groups: dict[int, list[int]] = {}
    for each in rounds:
        groups.setdefault(round(each.expected or 0.0), []).append(each.tokens)
    expected = sorted(groups)
    tokens.scatter(expected, [sum(groups[each]) / len(groups[each]) for each in expected])
    tokens.plot([1, max(expected)], [1, max(expected)], color="grey", linewidth=1)
    tokens.set(xlabel="tokens expected of a round", ylabel="mean tokens committed")
    return True
