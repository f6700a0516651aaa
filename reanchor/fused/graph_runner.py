"""The target's pass with fixed shapes, one region for each bucket of nodes, so that a CUDA graph can hold it.

A region reads its tree from one buffer, the committed length from the device, and writes keys and values by
slot; nothing in it asks the host or depends on a value. On CUDA it is captured at first use and replayed; anywhere
else, and in the tests, the same function runs as it is.

A captured region holds addresses, so what it touches must stay: `StaticBuffers` own the rows of a cache, lend them to
one decode after another, and goes with its regions when they have to grow.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from reanchor.attention.problem import Visibility, words_for
from reanchor.cache import TreeCache
from reanchor.core import Tree

if TYPE_CHECKING:
    from reanchor.fused.fused_target import FusedTarget

BUCKETS = (1, 16, 32, 64, 128, 256)
MIN_ROWS = 4096  # of an arena: growing costs all its captures
WARM_UPS = 2  # passes before a capture, so that whatever compiles or allocates has done so


def bucket_for(nodes: int) -> int | None:
    """The smallest bucket that holds a tree; None beyond the largest."""
    return next((bucket for bucket in BUCKETS if nodes <= bucket), None)


def packed(tree: Tree, bucket: int) -> np.ndarray:
    """[bucket * (2 + words)] int32: tokens, depths and visibility; padding repeats the anchor and sees only itself."""
    nodes, words = len(tree), words_for(bucket)
    sees = np.zeros((bucket, words * 32), dtype=bool)
    sees[:nodes, :nodes] = tree.ancestry()
    padding = np.arange(nodes, bucket)
    sees[padding, padding] = True
    tokens, depths = np.full(bucket, tree.tokens[0], dtype=np.int32), np.zeros(bucket, dtype=np.int32)
    tokens[:nodes], depths[:nodes] = tree.tokens, tree.depths
    bits = np.packbits(sees, axis=1, bitorder="little").view("<i4")  # [bucket, words]
    return np.concatenate([tokens, depths, bits.ravel()])


class CapturedGraph:
    """A function of fixed shapes: as it is, or captured in a graph and replayed."""

    graph: Any = None
    outputs: Any = None
    device: torch.device | None = None  # where it was captured

    def run(self) -> Any:
        """The function that is captured."""
        raise NotImplementedError

    def changes(self) -> Sequence[Tensor]:
        """What a run changes and the next one reads, rows behind the committed ones apart."""
        return ()

    def generators(self) -> Sequence[torch.Generator]:
        """Whose numbers a run draws."""
        return ()

    def capture(self, device: torch.device, pool: Any) -> None:
        """Needs valid inputs in place: warm-ups run with them, and what they change is put back."""
        before = [each.clone() for each in self.changes()]
        drawn = [each.get_state() for each in self.generators()]
        with torch.cuda.device(device):  # a graph holds what the current device does, and nothing of others
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    self.run()
                    for each, old in zip(self.changes(), before, strict=True):
                        each.copy_(old)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            for generator in self.generators():
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self.outputs = self.run()
        self.graph, self.device = graph, device
        for generator, state in zip(self.generators(), drawn, strict=True):
            generator.set_state(state)

    def outcome(self) -> Any:
        if self.graph is None:
            return self.run()
        with torch.cuda.device(self.device):
            self.graph.replay()
        return self.outputs


class GraphCallable(CapturedGraph):
    """One bucket's pass over one arena."""

    def __init__(self, target: FusedTarget, cache: TreeCache, bucket: int) -> None:
        self.target, self.bucket = target, bucket
        self.buffers, self.length = dict(cache.buffers), cache.device_length()
        self.rows = [
            cache.place(index, *empty_rows(cache, index)) for index in range(len(target.architecture.layers))
        ]
        self.tables = target.rotary.tables  # held here: a table that grows is a new one
        self.tree = torch.zeros(bucket * (2 + words_for(bucket)), dtype=torch.int32, device=target.device)

    def stage(self, tree: Tree) -> None:
        """Put a tree where the region reads it: one transfer."""
        self.tree.copy_(torch.from_numpy(packed(tree, self.bucket)), non_blocking=True)

    def run(self) -> tuple[Tensor, Tensor]:
        sizes = [self.bucket, self.bucket, self.bucket * words_for(self.bucket)]
        tokens, depths, words = self.tree.split(sizes)
        return self.over(tokens, depths, words.view(self.bucket, -1))

    def over(self, tokens: Tensor, depths: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [bucket, V] and features [bucket, Dc] of a padded tree. words: [bucket, W]"""
        sees = Visibility(self.length, words, depths, depths, self.bucket)
        slots = self.length + torch.arange(self.bucket, device=self.length.device)
        turns = self.target.rotary.at(self.length + depths, self.tables)

        def store(index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            key_rows, value_rows = (buffer[0] for buffer in self.rows[index])
            key_rows.index_copy_(1, slots, keys.transpose(0, 1))
            value_rows.index_copy_(1, slots, values.transpose(0, 1))
            return key_rows, value_rows

        hidden, features = self.target.run(tokens, turns, store, self.target.over(sees))
        return self.target.logits(hidden), features


def empty_rows(cache: TreeCache, index: int) -> tuple[Tensor, Tensor]:
    """No rows, of a layer's shape."""
    rows = cache.buffers[cache.kinds[index]][0, 0][:, :, :0]
    return rows, rows


@dataclass(eq=False)
class StaticBuffers:
    """A cache's rows and the regions that hold their addresses."""

    buffers: dict[str, Tensor] = field(default_factory=dict)
    length: Tensor | None = None
    capacity: int = 0
    borrower: weakref.ref[TreeCache] | None = None
    regions: dict[Any, CapturedGraph] = field(
        default_factory=dict
    )  # by bucket of nodes, or what else tells them apart

    @property
    def free(self) -> bool:
        return self.borrower is None or self.borrower() is None

    def share_buffers(self, cache: TreeCache) -> None:
        """Give a new cache these rows, for as long as somebody holds it."""
        self.borrower = weakref.ref(cache)
        cache.buffers, cache.capacity, cache._device_length = dict(self.buffers), self.capacity, self.length
        if self.length is not None:
            self.length.zero_()

    def follow(self, cache: TreeCache) -> None:
        """Take over what the cache has become; rows that moved take all regions with them."""
        moved = any(self.buffers.get(kind) is not rows for kind, rows in cache.buffers.items())
        if moved or self.length is not cache.device_length():
            self.regions.clear()
            self.buffers, self.length, self.capacity = (
                dict(cache.buffers),
                cache.device_length(),
                cache.capacity,
            )


class GraphRunner:
    """All regions of a target, made at first use; `say` hears of each."""

    def __init__(self, target: FusedTarget, capture: bool, say: Callable[[str], None]) -> None:
        self.target, self.capturing, self.say = target, capture, say
        self.arenas: list[StaticBuffers] = []
        self.refused: str | None = None  # why there are none any more
        self.captured: dict[str, float] = {}  # region -> seconds its last capture took
        self.bytes = 0  # device memory that captures took
        self.pool: Any = torch.cuda.graph_pool_handle() if capture else None

    def new_cache(self, cache: TreeCache) -> TreeCache:
        """A cache on rows that captured regions know, where they are free."""
        arena = next((each for each in self.arenas if each.free), None)
        if arena is None:
            self.arenas.append(arena := StaticBuffers())
        arena.share_buffers(cache)
        return cache

    def arena_of(self, cache: TreeCache) -> StaticBuffers | None:
        return next((each for each in self.arenas if each.borrower and each.borrower() is cache), None)

    def follow(self, arena: StaticBuffers, cache: TreeCache, rows: int) -> None:
        """Make room for this many rows behind the committed ones; rows that move take their regions with them."""
        cache.reserve(max(rows, MIN_ROWS - cache.length))
        self.target.rotary.reserve(cache.capacity)
        arena.follow(cache)

    def verify(self, tree: Tree, cache: TreeCache) -> tuple[Tensor, Tensor] | None:
        """Logits [N, V] and features [N, Dc]; None where the tree or the device is not for a region."""
        bucket, arena = bucket_for(len(tree)), self.arena_of(cache)
        if bucket is None or arena is None or self.refused is not None or not cache.buffers:
            return None
        self.follow(arena, cache, bucket)
        region = arena.regions.get(bucket)
        if region is None:
            region = GraphCallable(self.target, cache, bucket)
            region.stage(tree)
            if not self.hold(arena, bucket, region, f"a pass over {bucket} nodes"):
                return None
        assert isinstance(region, GraphCallable)
        region.stage(tree)
        # the next replay writes over its outputs
        logits, features = (rows[: len(tree)].clone() for rows in region.outcome())
        return logits, features

    def hold(self, arena: StaticBuffers, key: Any, region: CapturedGraph, name: str) -> bool:
        """Keep a new region, captured where there are graphs; False when that failed, and no other is tried."""
        if self.capturing:
            before, start = torch.cuda.memory_reserved(self.target.device), time.perf_counter()
            self.say(f"Capturing the graph of {name}")
            try:
                region.capture(self.target.device, self.pool)
            except (RuntimeError, ValueError) as error:
                self.refused = f"capturing {name} failed: {error}"
                return False
            self.captured[name] = time.perf_counter() - start
            self.bytes += torch.cuda.memory_reserved(self.target.device) - before
        arena.regions[key] = region
        return True

    def report(self) -> dict[str, Any]:
        return {
            "captured": dict(self.captured),
            "bytes": self.bytes,
            "refused": self.refused if self.capturing or self.refused else "no CUDA: regions run as they are",
        }
