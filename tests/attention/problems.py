"""Random problems of the two kinds the engine has: trees and batches of draft blocks."""

from __future__ import annotations

import numpy as np
import torch

from reanchor.attention.problem import Problem, Visibility


def ancestry(parents: list[int]) -> tuple[np.ndarray, list[int]]:
    """Who sees whom in a tree, and the depths."""
    sees, depths = np.eye(len(parents), dtype=bool), [0] * len(parents)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] |= sees[parent]
            depths[node] = depths[parent] + 1
    return sees, depths


def random_trie(nodes: int, rng: np.random.Generator, reach: int = 12) -> tuple[np.ndarray, list[int]]:
    return ancestry([-1, *(int(rng.integers(max(0, node - reach), node)) for node in range(1, nodes))])


def blocks(retained: int, size: int) -> tuple[np.ndarray, list[int], list[int]]:
    """Block d sees retained rows 0..d-1 and its own slots, and starts at depth d."""
    count = retained + 1
    sees = np.zeros((count * size, retained + count * size), dtype=bool)
    depths = [d + slot for d in range(count) for slot in range(size)]
    for d in range(count):
        own = slice(d * size, (d + 1) * size)
        sees[own, :d] = True
        sees[own, retained + d * size : retained + (d + 1) * size] = True
    return sees, depths, [*range(retained), *depths]


def problem(
    sees: np.ndarray,
    depths: list[int],
    length: int,
    heads: tuple[int, int] = (4, 2),
    size: int = 16,
    dtype: torch.dtype = torch.float32,
    tail_depths: list[int] | None = None,
    seed: int = 0,
    device: str = "cpu",
    **more: object,
) -> Problem:
    """Random queries, keys and values; every row that no query may see is NaN."""
    query_heads, kv_heads = heads
    queries, tail = sees.shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    keys, values = (draw(kv_heads, length + tail + 9, size) for _ in range(2))
    for buffer in (keys, values):
        buffer[:, length + tail :] = float("nan")
    visible = Visibility.pack(sees, depths, length, device, tail_depths)
    return Problem(draw(queries, query_heads, size), keys, values, visible, scale=size**-0.5, **more)


def in_double(given: Problem) -> Problem:
    """The same numbers, on the CPU in float64."""
    sees = given.sees
    cpu = Visibility(
        sees.length.cpu(),
        sees.words.cpu(),
        sees.depths.cpu(),
        sees.tail_depths.cpu(),
        sees.max_depth,
        sees.host_length,
    )
    queries, keys, values = (tensor.cpu().double() for tensor in (given.queries, given.keys, given.values))
    return Problem(queries, keys, values, cpu, given.scale, given.window, given.softcap)


# Largest relative error (2-norm) against float64 a backend may make on the problems of these tests.
BOUND = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


def error(out: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative 2-norm of the difference; NaN anywhere shows as NaN."""
    return float((out.cpu().double() - exact).norm() / exact.norm())
