"""Times one layer's tree attention: our backends against what a tree costs elsewhere.

    python benchmarks/attention.py [--device cuda] [--json table.json]

Peers: SDPA as transformers calls it for a tree (dense mask, keys repeated for every query head),
FlexAttention, and xformers' split-K tree attention, each where it is present. A case is a head layout, a
committed length and a number of nodes; the tree is a random one. First every method must equal the float64
definition on sampled rows; one that does not is reported, not timed, and the exit status is 1. Then
methods take turns, so that a drifting machine drifts for all; the figures are medians. Masks are made
before the clock starts, for every method alike: the engine makes them once a pass, not once a layer. On
CUDA the second-level cache is overwritten before every call, as the rest of a pass would. `auto` is
the backend the engine would take; `of copy` is the rate at which it moves keys and values, as a share of this
device's measured copy rate. A
declined or unavailable method is listed with its reason.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from reanchor.attention import reference
from reanchor.attention.problem import Problem, Visibility
from reanchor.attention.table import BACKENDS, pick

OURS = tuple(BACKENDS)
PEERS = ("dense", "flex", "xformers")
SAMPLED = 8  # query rows the gate compares
BOUND = {torch.float32: 2e-5, torch.bfloat16: 8e-3, torch.float16: 2e-3}  # relative 2-norm error
FLUSHED = 256 << 20  # bytes written to clear the device's cache


@dataclass(frozen=True)
class Layout:
    """The attention of a model's layer."""

    heads: int
    kv_heads: int
    size: int
    window: int | None = None
    softcap: float | None = None


LAYOUTS = {
    "SmolLM2-135M": Layout(9, 3, 64),
    "Qwen3-4B/8B": Layout(32, 8, 128),
    "Gemma3-1B": Layout(4, 1, 256),
    "Gemma3-1B sliding": Layout(4, 1, 256, window=512),
    "Gemma2-2B": Layout(8, 4, 256, softcap=50.0),
}


@dataclass(frozen=True)
class Case:
    layout: str
    length: int
    nodes: int


@dataclass
class Row:
    """What one case gave."""

    case: Case
    bytes: int  # of keys and values attended to
    auto: str  # the backend `auto` takes
    milliseconds: dict[str, float] = field(default_factory=dict)  # medians
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)  # quartiles
    absent: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, float] = field(default_factory=dict)


def make(case: Case, dtype: torch.dtype, device: torch.device) -> Problem:
    layout, numbers = LAYOUTS[case.layout], np.random.default_rng(0)
    sees, depths = np.eye(case.nodes, dtype=bool), [0] * case.nodes
    for node in range(1, case.nodes):
        parent = int(numbers.integers(max(0, node - 8), node))
        sees[node] |= sees[parent]
        depths[node] = depths[parent] + 1
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype, device=device)

    rows = case.length + case.nodes
    keys, values = (draw(layout.kv_heads, rows, layout.size) for _ in range(2))
    visible = Visibility.pack(sees, depths, case.length, device)
    queries = draw(case.nodes, layout.heads, layout.size)
    return Problem(queries, keys, values, visible, layout.size**-0.5, layout.window, layout.softcap)


def bytes_read(problem: Problem) -> int:
    start, end = problem.sees.rows(problem.binding_window)
    return 2 * (end - start) * problem.keys.shape[0] * problem.head_size * problem.keys.element_size()


# ---- the peers: each gives a call to time, or the reason it cannot


def dense(problem: Problem) -> Callable[[], Tensor] | str:
    if problem.softcap is not None:
        return "scaled_dot_product_attention has no soft cap"
    mask, end = problem.sees.mask(None), problem.sees.rows(None)[1]
    if problem.binding_window is not None:
        start = problem.sees.rows(problem.window)[0]
        hidden = mask.new_zeros(len(mask), start)
        mask = torch.cat([hidden, problem.sees.mask(problem.window)], 1)
    queries = problem.queries.transpose(0, 1)[None]

    def call() -> Tensor:
        keys, values = (
            rows[:, :end].repeat_interleave(problem.groups, 0)[None]
            for rows in (problem.keys, problem.values)
        )
        out = scaled_dot_product_attention(queries, keys, values, mask[None, None], scale=problem.scale)
        return out[0].transpose(0, 1)

    return call


@functools.cache
def compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.cache_size_limit = 256
    return torch.compile(flex_attention, dynamic=False)


def flex(problem: Problem) -> Callable[[], Tensor] | str:
    from torch.nn.attention.flex_attention import create_block_mask

    length, end = problem.sees.rows(None)[1] - problem.sees.tail, problem.sees.rows(None)[1]
    tail, depths, window, cap = problem.sees.tail_mask(), problem.sees.depths, problem.window, problem.softcap

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, row: Tensor) -> Tensor:
        node = (row - length).clamp(min=0)
        seen = (row < length) | tail[query, node]
        if window is None:
            return seen
        position = torch.where(row < length, row, length + depths[node])
        return seen & (length + depths[query] - position < window)

    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return score if cap is None else torch.tanh(score / cap) * cap

    mask = create_block_mask(sees, None, None, problem.sees.queries, end, device=problem.queries.device)
    queries = problem.queries.transpose(0, 1)[None]
    keys, values = (rows[None, :, :end] for rows in (problem.keys, problem.values))
    options = {"block_mask": mask, "scale": problem.scale, "enable_gqa": True}
    score = None if cap is None else capped
    return lambda: compiled_flex()(queries, keys, values, score_mod=score, **options)[0].transpose(0, 1)


def xformers(problem: Problem) -> Callable[[], Tensor] | str:
    try:
        from xformers.ops.fmha.attn_bias import BlockDiagonalPaddedKeysMask
        from xformers.ops.tree_attention import tree_attention
    except ImportError as error:
        return f"not installed ({error})"
    if problem.softcap is not None or problem.binding_window is not None:
        return "its tree attention has neither a soft cap nor a window"
    if problem.queries.device.type != "cuda":
        return "needs a CUDA device"
    length, end, groups = (
        problem.sees.rows(None)[1] - problem.sees.tail,
        problem.sees.rows(None)[1],
        problem.groups,
    )
    prefix = BlockDiagonalPaddedKeysMask.from_seqlens([problem.sees.queries], length, [length])
    tail = problem.queries.new_zeros(problem.sees.queries, problem.sees.tail)
    tail.masked_fill_(~problem.sees.tail_mask(), float("-inf"))
    queries = problem.queries.view(1, problem.sees.queries, -1, groups, problem.head_size)

    def part(rows: Tensor, start: int, stop: int) -> Tensor:  # [1, rows, Hkv, G, D], nothing repeated
        return rows[:, start:stop].transpose(0, 1)[None, :, :, None].expand(-1, -1, -1, groups, -1)

    spec = [part(rows, length, end) for rows in (problem.keys, problem.values)]
    cache = [part(rows, 0, length) for rows in (problem.keys, problem.values)]
    scaled = queries * (problem.scale * problem.head_size**0.5)
    return lambda: tree_attention(scaled, *spec, *cache, tail, prefix).reshape(problem.queries.shape)


# ---- gate and clock


def exact_rows(problem: Problem) -> tuple[Tensor, Tensor]:
    """Sampled query rows and their float64 outputs."""
    count = problem.sees.queries
    rows = torch.linspace(0, count - 1, min(SAMPLED, count), device=problem.queries.device).long().unique()
    sees = replace(problem.sees, words=problem.sees.words[rows], depths=problem.sees.depths[rows], memo={})
    doubles = {name: getattr(problem, name).double() for name in ("keys", "values")}
    few = replace(problem, queries=problem.queries[rows].double(), sees=sees, **doubles)
    return rows, reference.attend(few)


def error(out: Tensor, rows: Tensor, exact: Tensor) -> float:
    return float((out[rows].double() - exact).norm() / exact.norm())


class Clock:
    """Times calls in turns on one device."""

    def __init__(
        self, device: torch.device, least: int, most: int, seconds: float, cpu_time: bool = False
    ) -> None:
        self.device, self.least, self.most, self.seconds = device, least, most, seconds
        self.now = time.process_time if cpu_time else time.perf_counter
        self.scratch = (
            torch.empty(FLUSHED, dtype=torch.int8, device=device) if device.type == "cuda" else None
        )

    def once(self, call: Callable[[], Tensor]) -> float:
        """Milliseconds."""
        if self.scratch is None:
            start = self.now()
            call()
            return (self.now() - start) * 1e3
        self.scratch.zero_()  # also keeps the device busy while the host issues the call
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def turns(self, calls: dict[str, Callable[[], Tensor]]) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {name: [] for name in calls}
        start, names = time.perf_counter(), list(calls)
        for turn in range(self.most):
            if turn >= self.least and time.perf_counter() - start > self.seconds:
                break
            shift = turn % max(1, len(names))
            for name in names[shift:] + names[:shift]:
                times[name].append(self.once(calls[name]))
        return times

    def copy_rate(self) -> float:
        """Bytes per second read and written by a large copy."""
        size = (1 << 30) if self.device.type == "cuda" else (1 << 28)
        source = torch.zeros(size, dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        times = [self.once(lambda: target.copy_(source)) for _ in range(9)]
        return 2 * size / (statistics.median(times[2:]) / 1e3)


class Benchmark:
    """Runs the cases of one device. Peers that compile get a share of the time, and say so when it is spent."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, clock: Clock, peers: tuple[str, ...], patience: float
    ):
        self.device, self.dtype, self.clock, self.peers, self.patience = device, dtype, clock, peers, patience

    def run(self, case: Case) -> Row:
        problem = make(case, self.dtype, self.device)
        row = Row(case, bytes_read(problem), pick(problem).backend.name)
        rows, exact = exact_rows(problem)
        calls: dict[str, Callable[[], Tensor]] = {}
        for name in (*OURS, *PEERS):
            call = self.prepared(name, problem)
            if isinstance(call, str):
                row.absent[name] = call
                continue
            off = error(call(), rows, exact)
            if off < BOUND[self.dtype]:  # NaN fails too
                calls[name] = call
            else:
                row.wrong[name] = off
        for call in calls.values():
            call()
        for name, times in self.clock.turns(calls).items():
            row.milliseconds[name] = statistics.median(times)
            quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
            row.spread[name] = (quartiles[0], quartiles[2])
        return row

    def prepared(self, name: str, problem: Problem) -> Callable[[], Tensor] | str:
        if name in OURS:
            refusal = BACKENDS[name].decline(problem)
            return refusal if refusal is not None else functools.partial(BACKENDS[name].attend, problem)
        if name not in self.peers:
            return "not asked for"
        if name != "flex":
            return {"dense": dense, "xformers": xformers}[name](problem)
        if self.patience <= 0:
            return "the time for compiling it is spent"
        start = time.perf_counter()
        try:
            call = flex(problem)
            if not isinstance(call, str):
                call()
        except Exception as failure:  # a compiler of the user's machine: whatever it raises is the reason
            call = f"failed: {str(failure).splitlines()[0][:100]}"
        self.patience -= time.perf_counter() - start
        return call


def table(rows: list[Row], rate: float) -> Table:
    shown = [name for name in (*OURS, *PEERS) if any(name in row.milliseconds for row in rows)]
    grid = Table(title="one layer's tree attention, median ms", title_justify="left")
    for name in ("layout", "committed", "nodes", *shown, "auto against dense", "of copy"):
        grid.add_column(name, justify="left" if name == "layout" else "right")
    for row in rows:
        times = {name: f"{row.milliseconds[name]:.3f}" for name in row.milliseconds}
        ours, peer = row.milliseconds.get(row.auto), row.milliseconds.get("dense")
        against = f"{peer / ours:.2f}×" if ours and peer else "–"
        share = f"{row.bytes / (ours / 1e3) / rate:.0%}" if ours else "–"
        case = row.case
        cells = [times.get(name, "wrong" if name in row.wrong else "–") for name in shown]
        grid.add_row(case.layout, str(case.length), str(case.nodes), *cells, against, share)
    return grid


def reasons(rows: list[Row]) -> list[str]:
    """Every reason a method was absent, with the layouts it concerns."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        for name, reason in row.absent.items():
            found.setdefault((name, reason), {})[row.case.layout] = None
    return [f"{name}: {reason} ({', '.join(layouts)})" for (name, reason), layouts in found.items()]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times one layer's tree attention.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], help="default: bfloat16, float32 on a CPU"
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", help="default: 1024 8192 32768, without the last on a CPU"
    )
    parser.add_argument(
        "--nodes", type=int, nargs="+", help="default: 16 64 128 256, without the last on a CPU"
    )
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="default: all; dense only on a CPU")
    parser.add_argument(
        "--flex-seconds", type=float, default=60.0, help="time FlexAttention may spend compiling"
    )
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds of one thread, for a shared CPU")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    given = parser.parse_args()
    on_cpu = torch.device(given.device).type == "cpu"
    if given.cpu_time and not on_cpu:
        parser.error("--cpu-time is for a CPU")
    given.dtype = given.dtype or ("float32" if on_cpu else "bfloat16")
    given.lengths = given.lengths or ([1024, 8192] if on_cpu else [1024, 8192, 32768])
    given.nodes = given.nodes or ([16, 64, 128] if on_cpu else [16, 64, 128, 256])
    given.peers = (["dense"] if on_cpu else list(PEERS)) if given.peers is None else given.peers
    return given


def describe(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        "CPU",
    )
    return f"{cpu}, {torch.get_num_threads()} threads"


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


@torch.inference_mode()
def main() -> None:
    given, start, talk = arguments(), time.perf_counter(), Console(stderr=True)
    device, dtype = torch.device(given.device), getattr(torch, given.dtype)
    if given.cpu_time:
        torch.set_num_threads(1)
    clock = Clock(device, *((20, 50, 0.1) if device.type == "cuda" else (5, 25, 1.5)), given.cpu_time)
    rate = clock.copy_rate()
    bench = Benchmark(device, dtype, clock, tuple(given.peers), given.flex_seconds)
    rows = []
    for layout in given.layouts:
        for length in given.lengths:
            for nodes in given.nodes:
                talk.print(f"{layout}, {length} committed, {nodes} nodes")
                rows.append(bench.run(Case(layout, length, nodes)))
    where = {"device": describe(device), "dtype": given.dtype, "torch": torch.__version__, "copy": rate / 1e9}
    where["cpu_time"] = given.cpu_time
    out = Console(width=None if sys.stdout.isatty() else 160)
    time_of = "CPU time" if given.cpu_time else "time"
    out.print(
        f"{where['device']}, {given.dtype}, torch {torch.__version__}, copy {rate / 1e9:.0f} GB/s, {time_of}"
    )
    out.print(table(rows, rate))
    for reason in reasons(rows):
        out.print(f"absent  {reason}", highlight=False)
    if given.json:
        whole = {**where, "seconds": time.perf_counter() - start, "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(whole, indent=1))
    wrong = [(row.case, name, off) for row in rows for name, off in row.wrong.items()]
    for case, name, off in wrong:
        talk.print(f"[red]{name} is wrong[/red] on {case}: relative error {off:.2g}")
    talk.print(f"{time.perf_counter() - start:.0f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
