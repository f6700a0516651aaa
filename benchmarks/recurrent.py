"""Times one recurrent layer's tree: the solve over all nodes against transformers' two forms over a chain as long.

    python benchmarks/recurrent.py [--device cuda] [--json table.json]

A case is the head layout of a Gated DeltaNet and a number of nodes. `tree` is a random tree, `chain` the deepest one;
`commit` adds the longest path to the state; `chunked` and `stepped` are transformers' forms over a chain of as many
tokens, which is the least that verifying without trees would run. First each must give what stepping gives, within
single precision; one that does not is reported and the exit status is 1. Then they take turns, so that a drifting
machine drifts for all. Figures are medians, with the interquartile range. What depends on the tree alone is made before
the clock starts: the engine makes it once a round, not once a layer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from reanchor.recurrent import solve
from reanchor.recurrent.lineage import Lineage
from reanchor.recurrent.patched_layers import unit
from reanchor.recurrent.recurrence import RecurrenceProblem

LAYOUTS = {"Qwen3.5-4B": (16, 32, 128, 128), "Qwen3.5-27B": (16, 48, 128, 128)}  # Hk, H, K, V
BOUND = 2e-4  # relative 2-norm error


@dataclass(frozen=True)
class Case:
    layout: str
    nodes: int


@dataclass(frozen=True)
class Figure:
    """Milliseconds of one call."""

    median: float
    low: float
    high: float
    calls: int


def lineage(nodes: int, device: torch.device, chain: bool) -> Lineage:
    rng = np.random.default_rng(nodes)
    parents = [-1] + [
        node - 1 if chain or rng.random() < 0.6 else int(rng.integers(node)) for node in range(1, nodes)
    ]
    sees = np.zeros((nodes, nodes), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] = sees[parent]
        sees[node, node] = True
    return Lineage.of(parents, sees, device)


def drawn(case: Case, device: torch.device) -> dict[str, Tensor]:
    """What a layer gives transformers' functions, and a state."""
    draw = torch.Generator().manual_seed(case.nodes)
    key_heads, heads, key, value = LAYOUTS[case.layout]

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw).to(device)

    return {
        "query": normal(1, case.nodes, key_heads, key),
        "key": normal(1, case.nodes, key_heads, key),
        "value": normal(1, case.nodes, heads, value),
        "g": -torch.nn.functional.softplus(normal(1, case.nodes, heads)),
        "beta": normal(1, case.nodes, heads).sigmoid(),
        "initial_state": normal(1, heads, key, value),
    }


def problem(given: dict[str, Tensor], tree: Lineage) -> RecurrenceProblem:
    query, key = unit(given["query"][0]), unit(given["key"][0])
    return RecurrenceProblem(
        queries=query * query.shape[-1] ** -0.5,
        keys=key,
        values=given["value"][0],
        decay=given["g"][0],
        strength=given["beta"][0],
        state=given["initial_state"][0],
        lineage=tree,
    )


def theirs(function: Callable[..., tuple[Tensor, Tensor]], given: dict[str, Tensor]) -> Tensor:
    return function(**given, output_final_state=True, use_qk_l2norm_in_kernel=True)[0][0]


def methods(given: dict[str, Tensor], tree: Lineage, chain: Lineage) -> dict[str, Callable[[], Tensor]]:
    depths = tree.sees.sum(1)
    path = tree.sees[int(depths.argmax())].nonzero()[:, 0]
    kept, spare = solve.verify(problem(given, tree))[1], torch.empty_like(given["initial_state"][0])
    return {
        "tree": lambda: solve.verify(problem(given, tree))[0],
        "chain": lambda: solve.verify(problem(given, chain))[0],
        "commit": lambda: solve.commit(given["initial_state"][0], kept, path, out=spare),
        "chunked": lambda: theirs(torch_chunk_gated_delta_rule, given),
        "stepped": lambda: theirs(torch_recurrent_gated_delta_rule, given),
    }


def wrong(
    calls: dict[str, Callable[[], Tensor]], given: dict[str, Tensor], tree: Lineage
) -> dict[str, float]:
    """Relative errors above the bound: chains against stepping, the tree against its longest path stepped."""
    want = calls["stepped"]()
    node = int(tree.sees.sum(1).argmax())
    path = tree.sees[node].nonzero()[:, 0]
    alone = {name: each if name == "initial_state" else each[:, path] for name, each in given.items()}
    stepped, state = torch_recurrent_gated_delta_rule(
        **alone, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    pairs = {
        "chain": (calls["chain"](), want),
        "chunked": (calls["chunked"](), want),
        "tree": (calls["tree"]()[path], stepped[0]),
        "commit": (calls["commit"](), state[0]),
    }
    off = {name: float((found - right).norm() / right.norm()) for name, (found, right) in pairs.items()}
    return {name: error for name, error in off.items() if not error < BOUND}


def timed(calls: dict[str, Callable[[], Tensor]], seconds: float, device: torch.device) -> dict[str, Figure]:
    """In turns until every one has had its share of the time, five calls at least."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken["stepped"]) < 5:
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            call()
            wait()
            taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: figure(each) for name, each in taken.items()}


def figure(taken: list[float]) -> Figure:
    low, median, high = statistics.quantiles(taken, n=4)
    return Figure(median, low, high, len(taken))


def table(rows: list[tuple[Case, dict[str, Figure]]]) -> Table:
    shown = Table(
        "layer", "nodes", *rows[0][1], "chunked / tree", "stepped / tree", title="milliseconds a layer"
    )
    for case, figures in rows:
        cells = [f"{each.median:.2f} ({each.low:.2f}-{each.high:.2f})" for each in figures.values()]
        gains = [f"{figures[name].median / figures['tree'].median:.1f}" for name in ("chunked", "stepped")]
        shown.add_row(case.layout, str(case.nodes), *cells, *gains)
    return shown


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times one recurrent layer's tree.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument("--seconds", type=float, default=6.0, help="for each case")
    parser.add_argument("--threads", type=int, help="of a CPU; default: torch's own")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    given, talk = arguments(), Console(stderr=True)
    device = torch.device(given.device)
    if given.threads:
        torch.set_num_threads(given.threads)
    rows, failed = [], False
    for layout in given.layouts:
        for nodes in given.nodes:
            case = Case(layout, nodes)
            drawing, tree = drawn(case, device), lineage(nodes, device, chain=False)
            calls = methods(drawing, tree, lineage(nodes, device, chain=True))
            for name, error in wrong(calls, drawing, tree).items():
                failed = True
                talk.print(f"[red]{name} is wrong[/red] on {case}: relative error {error:.2g}")
            rows.append((case, timed(calls, given.seconds, device)))
    where = {"device": device.type, "threads": torch.get_num_threads(), "torch": torch.__version__}
    out = Console(width=None if sys.stdout.isatty() else 160)
    out.print(", ".join(f"{name} {value}" for name, value in where.items()))
    out.print(table(rows))
    if given.json:
        found = [{**asdict(case), **{name: asdict(each) for name, each in row.items()}} for case, row in rows]
        given.json.write_text(json.dumps({**where, "rows": found}, indent=1))
    sys.exit(failed)


if __name__ == "__main__":
    main()
