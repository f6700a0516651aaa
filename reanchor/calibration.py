"""Calibration of pass latencies: measured once, kept in the cache folder, watched as decoding goes on.

The only room of the engine with a clock, the stopwatch of the stats apart; what is done with the seconds it finds is
not its business.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from reanchor.cache_folder import cache_folder
from reanchor.core import Retained, Tree
from reanchor.drafters.base import Drafter
from reanchor.hardware import hardware, synchronizer
from reanchor.proposal import TreeBuilder
from reanchor.proposal.latency import LatencyModel
from reanchor.stats import Stopwatch
from reanchor.target import Target

WIDTHS = (1, 2, 4, 5, 8, 16, 32, 64)  # on CPUs the fifth row may be a step up (linear.py)
GENERATION = 3  # raised when our passes change their price
REPEATS = 7
NEAR, FAR = 64, 1024  # tokens of context behind which auto's costs are measured: in full, and how they grow
CURVES = ("verify", "draft")
UNSAVED: dict[str, Any] = {}  # what this process measured and could not keep
TIME_LIMIT = 2.0  # seconds of measuring, at either, after which no further turn is started

Curve = dict[int, float]  # size -> seconds
Stage = Callable[[str], AbstractContextManager[object]]


def calibrate(
    target: Target, drafter: Drafter, largest: int, say: Callable[[str], None] = lambda _message: None
) -> LatencyModel:
    """Of this pair on this machine, from the cache folder where it has been measured before."""
    file, key = cache_file(), cache_key(target, drafter)
    widths = sorted({*(width for width in WIDTHS if width < largest), largest})
    near, far = str(NEAR), str(far_context(target, drafter, largest))
    entry: Any = UNSAVED.get(key) or load_curves(file).get(key)
    if not is_valid(entry, near, far, widths):
        say("Measuring what passes of this pair take here, once")
        clock = Stopwatch(synchronizer(target.device))
        entry = {}
        for context in dict.fromkeys((near, far)):
            prompt = [place % target.vocabulary for place in range(int(context))]
            sizes = widths if context == near else sorted({1, widths[len(widths) // 2], largest})
            verify, draft = measure_curves(target, drafter, prompt, sizes, clock, TIME_LIMIT)
            entry[context] = {"verify": verify, "draft": draft}
        UNSAVED.pop(key, None)
        if not save_curves(file, key, entry):
            UNSAVED[key] = entry
    return latency_model(curves_of(entry[near]), curves_of(entry[far]), int(far) - NEAR)


def is_valid(entry: Any, near: str, far: str, widths: Sequence[int]) -> bool:
    """Are these the curves behind both contexts, at every width, in seconds? A file may hold anything."""
    try:
        close, away = curves_of(entry[near]), curves_of(entry[far])
        seconds = [each for curves in (close, away) for name in CURVES for each in curves[name].values()]
        return (
            {1, *widths} <= close["verify"].keys()
            and 1 in close["draft"]
            and all(1 in away[name] and away[name].keys() <= close[name].keys() for name in CURVES)
            and all(0 < each < float("inf") for each in seconds)
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return False


def far_context(target: Target, drafter: Drafter, largest: int) -> int:
    """FAR, or what the target's context has room for; NEAR where it has none beyond."""
    room = (target.context_length or FAR << 1) - largest - 2 * drafter.block_size
    return max(NEAR, min(FAR, room))


def latency_model(near: dict[str, Curve], far: dict[str, Curve], tokens: int) -> LatencyModel:
    """Curves, and how they grow over so many tokens of context; noise that falls is no growth."""
    slopes = {
        name: {size: max(0.0, (curve[size] - near[name][size]) / tokens) for size in curve}
        for name, curve in far.items()
        if tokens > 0
    }
    return LatencyModel(near["verify"], near["draft"], slopes, NEAR)


def curves_of(entry: Mapping[str, Mapping[str, float]]) -> dict[str, Curve]:
    return {
        name: {int(size): float(seconds) for size, seconds in curve.items()} for name, curve in entry.items()
    }


def cache_file() -> Path:
    return cache_folder() / "costs.json"


def load_curves(file: Path) -> dict[str, Any]:
    """What was measured before; nothing where there is no such file or something broke it."""
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def save_curves(file: Path, key: str, entry: dict[str, Any]) -> bool:
    """Write whole or not at all, beside what others wrote meanwhile. A folder that cannot be written costs a
    measurement in every process, no more.
    """
    part = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({**load_curves(file), key: entry}, indent=1))
        part.replace(file)
    except OSError:
        with suppress(OSError):
            part.unlink()
        return False
    return True


def cache_key(target: Target, drafter: Drafter) -> str:
    """Everything that a pass's time depends on, in words."""
    device = target.device
    machine = hardware(device)
    if device.type == "cpu":
        machine += f", {torch.get_num_threads()} threads"
    sizes = [
        f"{type(model).__name__} {sum(each.numel() for each in model.parameters())}"
        if isinstance(model, torch.nn.Module)
        else type(model).__name__
        for model in (target.model, drafter)
    ]
    forward = f"{target.forward_name} forward, {target.attention.choice} attention"
    blocks = f"blocks of {drafter.block_size} in {drafter.precision() or target.model.dtype}"
    versions = f"torch {torch.__version__}, costs {GENERATION}"
    return ", ".join([machine, *sizes, str(target.model.dtype), blocks, forward, versions])


@torch.no_grad()
def measure_curves(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    widths: Sequence[int],
    clock: Stopwatch,
    enough: float = float("inf"),
    repeats: int = REPEATS,
) -> tuple[Curve, Curve]:
    """Seconds of one pass by its nodes and of one draft by its blocks, behind one prompt.

    Sizes take turns, so that a machine's moods fall on all of them; the median of the turns is the cost.
    """
    ids = torch.tensor(prompt, device=target.device)
    cache, context = target.new_cache(), drafter.new_cache()
    drafter.commit(target.prefill(ids, cache).features, context)
    tail = target.verify(
        binary_tree(drafter.proposals + 1, prompt[-1], target.vocabulary), cache
    )  # rejected states to draft from
    retained = Retained(tuple(tail.logits.argmax(-1).tolist()[1:]), tail.features[1:])
    blocks = sorted({1, 2, 4, 8, len(retained) + 1} & set(range(1, len(retained) + 2)))
    trees = {width: binary_tree(width, prompt[-1], target.vocabulary) for width in sorted({1, *widths})}
    passes = {width: partial(target.verify, tree, cache) for width, tree in trees.items()}
    drafts = {
        count: partial(drafter.draft, prompt[-1], retained, range(1, count), context) for count in blocks
    }
    return interleaved_medians(clock, passes, repeats, enough), interleaved_medians(
        clock, drafts, repeats, enough
    )


def binary_tree(nodes: int, anchor: int, vocabulary: int) -> Tree:
    """A binary tree, as ragged as real ones are."""
    builder = TreeBuilder(anchor)
    for node in range(1, nodes):
        builder.add((node - 1) // 2, node % vocabulary, 0)
    return builder.freeze()


def interleaved_medians(
    clock: Stopwatch, calls: Mapping[int, Callable[[], object]], repeats: int, enough: float
) -> dict[int, float]:
    """Median seconds of each call, all of them once a turn; the first turn warms up."""
    laps: dict[int, list[float]] = {size: [] for size in calls}
    first = clock.now()
    for turn in range(repeats + 1):
        if turn > 1 and clock.now() - first > enough:
            break
        for size, call in calls.items():
            start = clock.now()
            call()
            if turn:
                laps[size].append(clock.now() - start)
    return {size: statistics.median(each) for size, each in laps.items()}


def timed_stages(stage: Stage, costs: LatencyModel, clock: Stopwatch) -> Stage:
    """The same stages, whose seconds the costs are told too."""

    @contextmanager
    def watch(name: str) -> Iterator[None]:
        start = clock.now()
        with stage(name):
            yield
        costs.laps[name] = costs.laps.get(name, 0.0) + clock.now() - start

    return watch
