"""What is on the pictures, asked of the figures before they are files."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from reanchor.benchmark import plots
from reanchor.benchmark.aggregation import cells
from tests.benchmark.runs import fault, record, results
from tests.benchmark.scripted import outcome_of, record_of, round_of

SWEPT = (
    "plain",
    "dflash",
    *(f"{method} max_nodes={nodes}" for nodes in ("8", "16", "none") for method in ("ddtree", "auto")),
)


def drawn(picture, **given) -> Figure:
    figure = Figure(layout="constrained")
    assert picture(figure, **given)
    figure.draw_without_rendering()
    return figure


def labels(figure: Figure) -> list[str]:
    (shown,) = figure.legends
    return [text.get_text() for text in shown.get_texts()]


def test_a_sweep_is_a_line_a_method_over_the_knob(tmp_path):
    made = record(SWEPT)
    made.differences.append(fault("auto max_nodes=16"))
    figure = drawn(plots.curves, found=cells([made]), knob="max_nodes")
    tau, speed = figure.axes
    assert set(labels(figure)) == {"ddtree", "auto", "dflash"}
    assert [tick.get_text() for tick in tau.get_xticklabels()] == ["8", "16", "none"]
    points = {each.get_label(): list(each[0].get_xdata()) for each in tau.containers}
    assert points == {"ddtree": [0, 1, 2], "auto": [0, 1, 2]}
    points = {each.get_label(): list(each[0].get_xdata()) for each in speed.containers}
    assert points == {"ddtree": [0, 1, 2], "auto": [0, 2]}  # a fault has no speed
    names = {path.name for path in plots.draw_plots(results([made], sweep=["max_nodes=8,16,none"]), tmp_path)}
    assert names == {"sweep-max_nodes-T0.png"}


def test_acceptance_lengths_are_drawn_a_set_each_and_the_tail_is_one_bin():
    lengths = [1] * 50 + [2] * 30 + [3] * 17 + [40] * 3
    sets = ("a", "b", "c", "d", "e")
    records = [record(("plain", "dflash", "auto"), lengths, dataset=name) for name in sets]
    figure = drawn(plots.histograms, found=cells(records))
    assert [axes.get_title() for axes in figure.axes if axes.has_data()] == list(sets)
    assert labels(figure) == ["dflash", "auto"]
    assert list(figure.axes[0].lines[0].get_ydata()) == pytest.approx([0.5, 0.3, 0.17, 0.03])
    assert figure.axes[4].get_xticklabels()[-1].get_text() == "≥4"


def test_a_point_stands_for_five_rounds_or_more():
    rounds = [round_of(1, nodes=4)] * 10 + [round_of(2, nodes=5)] * 4 + [round_of(4, nodes=6)] * 5
    figure = drawn(plots.nodes_accepted, rounds={"dflash": rounds})
    assert figure.axes[0].collections[0].get_offsets().tolist() == [[4, 1], [6, 4]]
    rounds = [round_of(1)] * 5 + [round_of(2)] * 4 + [round_of(3)] * 2
    (line,) = drawn(plots.positions, rounds={"dflash": rounds}).axes[0].lines
    assert list(line.get_ydata()) == pytest.approx([6 / 11, 2 / 6])  # two rounds only got to the third


@pytest.mark.parametrize("name", ["tau", "speedup"])
def test_the_legend_lies_beside_the_bars(name):
    records = [
        record(("plain", "dflash", "auto"), dataset=each, id=f"p{at}") for each in "ab" for at in range(2)
    ]
    figure = drawn(partial(plots.bars, name=name, label=name), found=cells(records))
    (legend,) = figure.legends
    assert legend.get_window_extent().x0 >= figure.axes[0].get_window_extent().x1
    assert labels(figure) == ["dflash", "auto"]


def test_a_picture_says_of_what_it_is_and_who_is_left_out(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: saved.append(figure))
    made = record_of(plain=outcome_of([1] * 6), dflash=outcome_of([2] * 6), auto=outcome_of([2] * 6))
    made.differences.append(fault("auto"))
    plots.draw_plots(results([made]), tmp_path)
    assert len(saved) == 6
    for figure in saved:
        assert figure.get_suptitle() == "Qwen/Qwen3-4B + z-lab/Qwen3-4B-DFlash-b16, bfloat16, T=0"
        assert figure.get_supxlabel().endswith("no speed-up is drawn: auto on own")
