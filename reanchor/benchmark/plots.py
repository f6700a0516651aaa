"""Figures of a run as pictures. It needs matplotlib, which is imported here and nowhere else."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from reanchor.benchmark.aggregation import ALL, PLAIN, Cell, cells
from reanchor.benchmark.bootstrap import INSTALL
from reanchor.benchmark.findings import place_of
from reanchor.benchmark.record import PromptRecord
from reanchor.benchmark.results import Results
from reanchor.stats import RoundStats, Stats

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")
MARKERS = "osD^vPX*"  # another for every round of the colours
FEWEST = 5  # rounds that a point must stand for
TAIL = 0.05  # of the rounds of a method may share the last bin of acceptance lengths
TICKS = 8  # numbers below a small picture
WRAPPED = 110  # letters of a title's line

Picture = Callable[[Any], bool]


def draw_plots(results: Results, folder: Path) -> list[Path]:
    """Every picture of every temperature, as PNG files in `folder`. A sweep is drawn over its knobs."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError(f"plots need matplotlib: {INSTALL}") from error
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    found, header = cells(results.records), results.header
    for temperature in dict.fromkeys(each.temperature for each in found):
        these = [each for each in found if each.temperature == temperature]
        own = [each for each in results.records if each.temperature == temperature]
        title = f"{header['target']} + {header['drafter']}, {header['dtype']}, T={temperature:g}"
        pictures = swept(these) if header.get("sweep") else compared(these, own)
        drawn += [
            path
            for name, picture in pictures.items()
            if (path := save(picture, title, faulty(these), folder / f"{name}-T{temperature:g}.png"))
        ]
    return drawn


def compared(found: Sequence[Cell], records: Sequence[PromptRecord]) -> dict[str, Picture]:
    rounds = {name: list(rounds_of(records, name)) for name in records[0].methods if name not in PLAIN}
    return {
        "acceptance-lengths": partial(histograms, found=found),
        "position-acceptance": partial(positions, rounds=rounds),
        "tau": partial(bars, found=found, name="tau", label="acceptance length τ"),
        "speedup": partial(bars, found=found, name="speedup", label="speed-up over plain"),
        "time-split": partial(split, found=whole(found)),
        "nodes-accepted": partial(nodes_accepted, rounds=rounds),
        "reliability": partial(reliability, rounds=rounds.get("auto", [])),
    }


def swept(found: Sequence[Cell]) -> dict[str, Picture]:
    """A picture a knob, over all datasets."""
    last = list({each.method: each for each in found}.values())
    knobs = dict.fromkeys(place[1] for each in last if (place := place_of(each.method)))
    return {f"sweep-{knob}": partial(curves, found=last, knob=knob) for knob in knobs}


def faulty(found: Sequence[Cell]) -> str:
    """Whose outputs were wrong, and where."""
    by: dict[str, list[str]] = {}
    for each in found:
        if each.faults:
            by.setdefault(each.dataset, []).append(each.method)
    said = "; ".join(f"{', '.join(methods)} on {dataset}" for dataset, methods in by.items())
    return f"Outputs with faults, for which no speed-up is drawn: {said}" if said else ""


def save(picture: Picture, title: str, note: str, path: Path) -> Path | None:
    """None when there was nothing to draw."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    if not picture(figure):
        return None
    figure.suptitle("\n".join(textwrap.wrap(title, WRAPPED)), fontsize=11)
    if note:
        figure.supxlabel("\n".join(textwrap.wrap(note, WRAPPED)), fontsize=8)
    figure.savefig(path, dpi=120)
    return path


def whole(found: Sequence[Cell]) -> list[Cell]:
    """The speculative methods over all datasets."""
    together = [each for each in found if each.dataset == ALL] or list(found)
    return [each for each in together if each.method not in PLAIN and each.histogram]


def rounds_of(records: Sequence[PromptRecord], method: str) -> Iterator[RoundStats]:
    """A loop that is not ours tells nothing of its rounds."""
    for record in records:
        for outcome in record.outcomes(method):
            yield from outcome.rounds


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def style(index: int) -> dict[str, Any]:
    return {"color": colour(index), "marker": MARKERS[index // len(COLOURS) % len(MARKERS)]}


def legend(figure: Any, axes: Any) -> None:
    """Beside the axes, where it hides nothing."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=9)


def histograms(figure: Any, found: Sequence[Cell]) -> bool:
    """Share of rounds by tokens committed, dataset by dataset (paper's Figure 2)."""
    found = [each for each in found if each.method not in PLAIN and each.histogram and each.dataset != ALL]
    if not found:
        return False
    datasets = list(dict.fromkeys(each.dataset for each in found))
    methods = list(dict.fromkeys(each.method for each in found))
    last = max(bound(each.histogram) for each in found)
    across = min(4, len(datasets))
    down = -(-len(datasets) // across)
    figure.set_size_inches(max(8, 3 * across + 2), max(4.5, 2.3 * down + 1))
    every = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
    for axes, dataset in zip(every, datasets, strict=False):
        for each in (each for each in found if each.dataset == dataset):
            shares = binned(each.histogram, last)
            axes.plot(
                range(1, last + 1), shares, ms=3, label=each.method, **style(methods.index(each.method))
            )
        axes.set_title(dataset, fontsize=10)
        step = -(-last // TICKS)
        ticks = [*range(1, last - step + 1, step), last]
        axes.set_xticks(ticks, [*map(str, ticks[:-1]), f"≥{last}"])
    for axes in every[len(datasets) :]:
        axes.axis("off")
    for axes in every[len(datasets) - across : len(datasets)]:  # the lowest of every column
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("tokens of a round, bonus included", fontsize=8)
    for axes in every[::across]:
        axes.set_ylabel("share of rounds", fontsize=8)
    legend(figure, max(every, key=lambda axes: len(axes.lines)))
    return True


def bound(counts: dict[int, int]) -> int:
    """The first bin that, with everything above it, holds few rounds."""
    few, above = TAIL * sum(counts.values()), 0
    for length in sorted(counts, reverse=True):
        above += counts[length]
        if above > few:
            return length + 1
    return 1


def binned(counts: dict[int, int], last: int) -> list[float]:
    """Shares of lengths from 1; the last holds all from there on."""
    rounds = sum(counts.values())
    exact = [counts.get(length, 0) / rounds for length in range(1, last)]
    return [*exact, sum(count for length, count in counts.items() if length >= last) / rounds]


def positions(figure: Any, rounds: dict[str, list[RoundStats]]) -> bool:
    """Acceptance of the draft at a depth, given that all before it were accepted."""
    axes, drawn = figure.subplots(), False
    for index, (method, own) in enumerate(rounds.items()):
        rates = [
            rate for depth, rate in enumerate(Stats(rounds=own).position_rates(), 1) if reached(own, depth)
        ]
        if rates:
            axes.plot(range(1, len(rates) + 1), rates, label=method, **style(index))
            drawn = True
    axes.set(xlabel=f"depth of the draft, where {FEWEST} rounds or more reached it", ylim=(0, 1.02))
    axes.set(ylabel="accepted, given all before")
    axes.xaxis.get_major_locator().set_params(integer=True)
    legend(figure, axes)
    return drawn


def reached(rounds: Sequence[RoundStats], depth: int) -> bool:
    """Did enough rounds get there? The deeper, the fewer."""
    return sum(each.depth >= depth and each.accepted >= depth - 1 for each in rounds) >= FEWEST


def bars(figure: Any, found: Sequence[Cell], name: str, label: str) -> bool:
    """A figure by dataset and method, with its 95 % interval."""
    found = [each for each in found if each.method not in PLAIN]
    datasets = list(dict.fromkeys(each.dataset for each in found))
    methods = list(dict.fromkeys(each.method for each in found))  # also of those left out: colours stay
    found = [each for each in found if getattr(each, name) is not None]
    if not found:
        return False
    figure.set_size_inches(max(10, 1.3 * len(datasets) + 3), 5)
    axes = figure.subplots()
    width = 0.8 / len(methods)
    for index, method in enumerate(methods):
        those = [each for each in found if each.method == method]
        places = [datasets.index(each.dataset) + (index - (len(methods) - 1) / 2) * width for each in those]
        values = [getattr(each, name) for each in those]
        errors = [spread(each, name) for each in those]
        if those:
            axes.bar(places, values, width, color=colour(index), label=method)
            axes.errorbar(
                places, values, list(zip(*errors, strict=True)), fmt="none", ecolor="black", capsize=2
            )
    axes.axhline(1.0, color="grey", linewidth=0.8, linestyle="--")
    axes.set(ylabel=label)
    axes.set_xticks(range(len(datasets)), datasets, rotation=30 if len(datasets) > 5 else 0)
    legend(figure, axes)
    return True


def spread(each: Cell, name: str) -> tuple[float, float]:
    """How far the interval reaches below and above."""
    value, interval = getattr(each, name), getattr(each, f"{name}_interval")
    return (
        (0.0, 0.0) if interval is None else (max(0.0, value - interval.low), max(0.0, interval.high - value))
    )


def curves(figure: Any, found: Sequence[Cell], knob: str) -> bool:
    """Acceptance length and speed-up over a knob's values, a line a method; those without the knob level."""
    places = {each.method: place for each in found if (place := place_of(each.method)) and place[1] == knob}
    values = sorted(dict.fromkeys(value for _, _, value in places.values()), key=size)
    methods = list(dict.fromkeys(method for method, _, _ in places.values()))
    once = [each for each in found if place_of(each.method) is None and each.method not in PLAIN]
    figure.set_size_inches(11, 4.5)
    both = figure.subplots(1, 2)
    labels = {"tau": "acceptance length τ", "speedup": "speed-up over plain"}
    for axes, (name, label) in zip(both, labels.items(), strict=True):
        shown = [each for each in found if getattr(each, name) is not None]
        for index, method in enumerate(methods):
            own = [each for each in shown if places.get(each.method, ("",))[0] == method]
            at = [values.index(places[each.method][2]) for each in own]
            curve(axes, at, own, name, label=method, **style(index))
        for each in shown:
            if each in once:
                axes.axhline(
                    getattr(each, name),
                    color=colour(len(methods) + once.index(each)),
                    ls=":",
                    label=each.method,
                )
        axes.axhline(1.0, color="grey", linewidth=0.8, linestyle="--")
        axes.set(xlabel=knob, ylabel=label)
        axes.set_xticks(range(len(values)), values)
    legend(figure, both[0])
    return bool(methods)


def size(value: str) -> float:
    """Numbers in order; words, and no limit, behind them as they come."""
    return float(value) if value.isdecimal() else float("inf")


def curve(axes: Any, at: Sequence[int], own: Sequence[Cell], name: str, **look: Any) -> None:
    """A line with its 95 % intervals."""
    if own:
        errors = list(zip(*(spread(each, name) for each in own), strict=True))
        axes.errorbar(at, [getattr(each, name) for each in own], errors, capsize=2, **look)


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
    legend(figure, axes)
    return True


def nodes_accepted(figure: Any, rounds: dict[str, list[RoundStats]]) -> bool:
    """Mean tokens of a round against the nodes it verified; an area says how many rounds."""
    axes, drawn = figure.subplots(), False
    for index, (method, own) in enumerate(rounds.items()):
        groups = grouped((each.nodes, each.tokens) for each in own)
        if groups:
            sizes = [10 + 300 * len(each) / len(own) for each in groups.values()]
            means = [sum(each) / len(each) for each in groups.values()]
            axes.scatter(list(groups), means, sizes, alpha=0.6, label=method, **style(index))
            drawn = True
    axes.set(xlabel=f"nodes verified in a round, {FEWEST} rounds or more", ylabel="mean tokens committed")
    legend(figure, axes)
    return drawn


def grouped(pairs: Iterator[tuple[int, int]]) -> dict[int, list[int]]:
    """Second numbers by first, in order, where there are enough."""
    groups: dict[int, list[int]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return {name: groups[name] for name in sorted(groups) if len(groups[name]) >= FEWEST}


def reliability(figure: Any, rounds: Sequence[RoundStats]) -> bool:
    """Method auto: how often edges of a price were taken, and tokens committed against tokens expected."""
    bins = [each for each in Stats("auto", rounds=list(rounds)).reliability() if each["edges"] >= FEWEST]
    groups = grouped((round(each.expected or 0.0), each.tokens) for each in rounds)
    if not bins or not groups:
        return False
    edges, tokens = figure.subplots(1, 2)
    edges.scatter(
        [each["price"] for each in bins],
        [each["taken"] for each in bins],
        [20 + 300 * each["edges"] / sum(each["edges"] for each in bins) for each in bins],
    )
    edges.plot([0, 1], [0, 1], color="grey", linewidth=1)
    edges.set(xlabel="price of an edge", ylabel="share taken by the target")
    tokens.scatter(list(groups), [sum(each) / len(each) for each in groups.values()])
    tokens.plot([1, max(groups)], [1, max(groups)], color="grey", linewidth=1)
    tokens.set(xlabel=f"tokens expected of a round, {FEWEST} rounds or more", ylabel="mean tokens committed")
    return True
