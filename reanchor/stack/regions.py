"""The target's pass with fixed shapes, one region for each bucket of nodes, so that a CUDA graph can hold it.

A region reads its tree from one buffer, the committed length from the device, and writes keys and values by
slot; nothing in it asks the host or depends on a value. On CUDA it is captured at first use and replayed; anywhere
else, and in the tests, the same function runs as it is.

A captured region holds addresses, so what it touches must stay: an `Arena` owns the rows of a cache, lends them to
one decode after another, and goes with its regions when they have to grow.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from reanchor.attention.problem import Visibility, words_for
from reanchor.cache import TreeCache
from reanchor.core import Tree

if TYPE_CHECKING:
    from reanchor.stack.target import LeanTarget

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


class Region:
    """One bucket's pass over one arena."""

    def __init__(self, target: LeanTarget, cache: TreeCache, bucket: int) -> None:
        self.target, self.bucket = target, bucket
        self.buffers, self.length = dict(cache.buffers), cache.device_length()
        self.rows = [
            cache.place(index, *empty_rows(cache, index)) for index in range(len(target.stack.layers))
        ]
        self.tables = target.rotary.tables  # held here: a table that grows is a new one
        self.tree = torch.zeros(bucket * (2 + words_for(bucket)), dtype=torch.int32, device=target.device)
        self.outputs: tuple[Tensor, Tensor] | None = None
        self.graph: Any = None

    def stage(self, tree: Tree) -> None:
        """Put a tree where the region reads it: one transfer."""
        self.tree.copy_(torch.from_numpy(packed(tree, self.bucket)), non_blocking=True)

    def run(self) -> tuple[Tensor, Tensor]:
        """Logits [bucket, V] and features [bucket, Dc]: the function that is captured."""
        sizes = [self.bucket, self.bucket, self.bucket * words_for(self.bucket)]
        tokens, depths, words = self.tree.split(sizes)
        sees = Visibility(self.length, words.view(self.bucket, -1), depths, depths, self.bucket)
        slots = self.length + torch.arange(self.bucket, device=self.length.device)
        turns = self.target.rotary.at(self.length + depths, self.tables)

        def store(index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            key_rows, value_rows = (buffer[0] for buffer in self.rows[index])
            key_rows.index_copy_(1, slots, keys.transpose(0, 1))
            value_rows.index_copy_(1, slots, values.transpose(0, 1))
            return key_rows, value_rows

        hidden, features = self.target.run(tokens, turns, store, self.target.over(sees))
        return self.target.logits(hidden), features

    def capture(self) -> None:
        """Needs a staged tree: warm-ups write its rows."""
        stream = torch.cuda.Stream(self.target.device)
        stream.wait_stream(torch.cuda.current_stream(self.target.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self.run()
        torch.cuda.current_stream(self.target.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=self.target.regions.pool):
            self.outputs = self.run()

    def outcome(self) -> tuple[Tensor, Tensor]:
        if self.graph is None:
            return self.run()
        self.graph.replay()
        assert self.outputs is not None
        return self.outputs


def empty_rows(cache: TreeCache, index: int) -> tuple[Tensor, Tensor]:
    """No rows, of a layer's shape."""
    rows = cache.buffers[cache.kinds[index]][0, 0][:, :, :0]
    return rows, rows


@dataclass
class Arena:
    """A cache's rows and the regions that hold their addresses."""

    buffers: dict[str, Tensor] = field(default_factory=dict)
    length: Tensor | None = None
    capacity: int = 0
    borrower: weakref.ref[TreeCache] | None = None
    regions: dict[int, Region] = field(default_factory=dict)

    @property
    def free(self) -> bool:
        return self.borrower is None or self.borrower() is None

    def lend(self, cache: TreeCache) -> None:
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


class Regions:
    """All regions of a target, made at first use; `say` hears of each."""

    def __init__(self, target: LeanTarget, capture: bool, say: Callable[[str], None]) -> None:
        self.target, self.capturing, self.say = target, capture, say
        self.arenas: list[Arena] = []
        self.refused: str | None = None  # why there are none any more
        self.captured: dict[int, float] = {}  # bucket -> seconds its last capture took
        self.bytes = 0  # device memory that captures took
        self.pool: Any = torch.cuda.graph_pool_handle() if capture else None

    def new_cache(self, cache: TreeCache) -> TreeCache:
        """A cache on rows that captured regions know, where they are free."""
        arena = next((each for each in self.arenas if each.free), None)
        if arena is None:
            self.arenas.append(arena := Arena())
        arena.lend(cache)
        return cache

    def verify(self, tree: Tree, cache: TreeCache) -> tuple[Tensor, Tensor] | None:
        """Logits [N, V] and features [N, Dc]; None where the tree or the device is not for a region."""
        bucket = bucket_for(len(tree))
        arena = next((each for each in self.arenas if each.borrower and each.borrower() is cache), None)
        if bucket is None or arena is None or self.refused is not None or not cache.buffers:
            return None
        cache.reserve(max(bucket, MIN_ROWS - cache.length))
        self.target.rotary.reserve(cache.capacity)
        arena.follow(cache)
        region = arena.regions.get(bucket)
        if region is None:
            region = self.made(arena, cache, bucket, tree)
            if region is None:
                return None
        region.stage(tree)
        # the next replay writes over its outputs
        logits, features = (rows[: len(tree)].clone() for rows in region.outcome())
        return logits, features

    def made(self, arena: Arena, cache: TreeCache, bucket: int, tree: Tree) -> Region | None:
        region = Region(self.target, cache, bucket)
        if self.capturing:
            before, start = torch.cuda.memory_reserved(self.target.device), time.perf_counter()
            self.say(f"Capturing the graph of {bucket} nodes")
            region.stage(tree)
            try:
                region.capture()
            except (RuntimeError, ValueError) as error:
                self.refused = f"capturing {bucket} nodes failed: {error}"
                return None
            self.captured[bucket] = time.perf_counter() - start
            self.bytes += torch.cuda.memory_reserved(self.target.device) - before
        arena.regions[bucket] = region
        return region

    def report(self) -> dict[str, Any]:
        return {"captured": dict(self.captured), "bytes": self.bytes, "refused": self.refused}
