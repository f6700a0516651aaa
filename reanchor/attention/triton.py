"""The Triton backend: launches of the split-KV kernel and the merge, and the tile each shape gets. It
knows no model.

Nothing here reads a device value on the host, and no launch depends on the committed length, so a captured
graph may hold it. torch sees one opaque operator, `reanchor::tree_attention`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reanchor.attention.problem import Problem, Visibility

SHARED_LIMIT = 227 * 1024  # bytes a program may use on sm_90
TYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Tile:
    """How one program of the split kernel is cut and compiled."""

    rows: int  # BLOCK_M
    keys: int  # BLOCK_N
    warps: int
    stages: int


# padded head size -> (most folded rows, tile), ascending; the last row of each serves everything larger
HALF_TILES: dict[int, tuple[tuple[int, Tile], ...]] = {
    64: ((16, Tile(16, 64, 4, 3)), (32, Tile(32, 64, 4, 3)), (0, Tile(64, 64, 4, 3))),
    128: (
        (16, Tile(16, 64, 4, 3)),
        (32, Tile(32, 64, 4, 3)),
        (256, Tile(64, 64, 4, 2)),
        (0, Tile(128, 64, 8, 3)),
    ),
    256: (
        (16, Tile(16, 32, 4, 2)),
        (32, Tile(32, 32, 4, 2)),
        (64, Tile(64, 32, 4, 2)),
        (0, Tile(128, 64, 8, 2)),
    ),
}
FLOAT_TILES: dict[int, tuple[tuple[int, Tile], ...]] = {
    64: ((0, Tile(32, 32, 4, 2)),),
    128: ((0, Tile(16, 32, 8, 2)),),
    256: ((0, Tile(16, 32, 8, 1)),),
}


def padded(size: int) -> int:
    """The power of two a head size is computed at."""
    return max(16, 1 << (size - 1).bit_length())


def tile_for(rows: int, head_size: int, dtype: torch.dtype) -> Tile:
    table = FLOAT_TILES if dtype == torch.float32 else HALF_TILES
    ladder = table[max(64, padded(head_size))]
    return next((tile for most, tile in ladder if rows <= most), ladder[-1][1])


def splits_for(rows: int, kv_heads: int, tile: Tile, processors: int) -> int:
    """Parts of the key range: enough programs to occupy every processor once, whatever the length."""
    programs = -(-rows // tile.rows) * kv_heads
    return max(1, min(64, processors // programs))


def interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def decline(problem: Problem) -> str | None:
    device, dtype = problem.queries.device.type, problem.queries.dtype
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device != "cuda" and not interpreting():
        return f"its kernels need a CUDA device, and this is {device}"
    if dtype not in TYPES:
        return f"its kernels compute in bfloat16, float16 or float32, not {str(dtype).removeprefix('torch.')}"
    if problem.head_size > 256:
        return f"head size {problem.head_size} is above 256"
    return None


def attend(problem: Problem) -> Tensor:
    """[N, Hq, D]"""
    return operator()(*arguments(problem))


def arguments(problem: Problem) -> tuple[Any, ...]:
    """The problem spread out as the operators of this room take it."""
    sees = problem.sees
    shared = (sees.length, sees.words, sees.depths, sees.tail_depths)
    return (
        problem.queries,
        problem.keys,
        problem.values,
        *shared,
        problem.scale,
        problem.window,
        problem.softcap,
    )


@functools.cache
def operator() -> Any:
    """The registered operator; made at first use, since importing this file must not import triton."""
    schema = (
        "(Tensor q, Tensor k, Tensor v, Tensor length, Tensor words, Tensor depths, Tensor tail_depths, "
        "float scale, int? window, float? softcap) -> Tensor"
    )
    made = torch.library.custom_op("reanchor::tree_attention", launch, mutates_args=(), schema=schema)
    made.register_fake(lambda q, *rest: torch.empty_like(q, memory_format=torch.contiguous_format))
    return made


def launch(
    q: Tensor, k: Tensor, v: Tensor, length: Tensor, words: Tensor, depths: Tensor, tail_depths: Tensor,
    scale: float, window: int | None, softcap: float | None,
) -> Tensor:  # fmt: skip
    sees = Visibility(length, words, depths, tail_depths, max_depth=0)
    problem = Problem(q, k, v, sees, scale, window, softcap)
    parts, lse = split_parts(problem, prefix=True)
    return merge_parts(problem, parts, lse)


def split_parts(problem: Problem, prefix: bool, splits: int | None = None) -> tuple[Tensor, Tensor]:
    """fp32 partial outputs [splits, N, Hq, D] and their log-sum-exps to base 2 [splits, N, Hq]."""
    from reanchor.attention import kernels

    queries, sees = problem.queries, problem.sees
    count, heads, size = queries.shape
    kv_heads, rows = problem.keys.shape[0], count * problem.groups
    tile = tile_for(rows, size, queries.dtype)
    if splits is None:
        splits = splits_for(rows, kv_heads, tile, processors(queries.device))
        # The tail alone is short: more parts than blocks of keys would be empty ones.
        splits = splits if prefix else min(splits, -(-sees.tail // tile.keys))
    parts = queries.new_empty((splits, count, heads, size), dtype=torch.float32)
    lse = queries.new_empty((splits, count, heads), dtype=torch.float32)
    with torch.cuda.device_of(queries):  # Triton launches on the current device
        kernels.split[(-(-rows // tile.rows), kv_heads, splits)](
            queries, problem.keys, problem.values,
            sees.length, sees.words, sees.depths, sees.tail_depths, parts, lse,
            problem.scale, problem.softcap or 1.0, problem.window or 0,
            *queries.stride(), *problem.keys.stride(), *problem.values.stride(), sees.words.stride(0),
            count, sees.tail, heads,
            SPLITS=splits, PREFIX=prefix, UPCAST=interpreting() and queries.dtype == torch.bfloat16,
            **constants(problem, tile), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return parts, lse


def constants(problem: Problem, tile: Tile) -> dict[str, Any]:
    return {
        "G": problem.groups,
        "D": problem.head_size,
        "D_PAD": padded(problem.head_size),
        "BLOCK_M": tile.rows,
        "BLOCK_N": tile.keys,
        "WINDOW": problem.window is not None,
        "SOFTCAP": problem.softcap is not None,
        "PRECISION": "ieee"
        if problem.queries.dtype == torch.float32
        else "tf32",  # half precision ignores it
    }


def merge_parts(
    problem: Problem, parts: Tensor, lse: Tensor, prefix: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """[N, Hq, D]; `prefix`: a dense attention over it [N, Hq, D] and its natural log-sum-exp [N, Hq]."""
    from reanchor.attention import kernels

    splits, count, heads, size = parts.shape
    out = problem.queries.new_empty((count, heads, size))
    dense, dense_lse = prefix if prefix is not None else (parts[0], lse[0])
    assert dense.stride(-1) == 1
    with torch.cuda.device_of(out):  # Triton launches on the current device
        kernels.merge[(count * heads,)](
            parts, lse, dense, dense_lse, out,
            count * heads, heads, dense.stride(0), dense.stride(1), dense_lse.stride(0), dense_lse.stride(1),
            D=size, D_PAD=padded(size), SPLITS=splits, SPLITS_PAD=1 << (splits - 1).bit_length(),
            PREFIX=prefix is not None, num_warps=4 if splits > 8 else 1,
        )  # fmt: skip
    return out


@functools.cache
def processors(device: torch.device) -> int:
    """Streaming multiprocessors; the interpreter, which runs programs one by one, gets few."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 6
