"""The Triton form: one launch a layer where torch's solve takes a dozen. It has been compiled for sm_90 and run under
Triton's interpreter. No layer takes it until it has run on a device.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from reanchor.recurrent.recurrence import Kept, RecurrenceProblem

MOST_NODES = 64  # that one program holds
MOST_KEYS = 256  # key size
COLUMNS = 32  # of values, a program
PIECE = 32  # of keys, at a time


def padded(size: int) -> int:
    """The power of two that a size is computed at."""
    return max(16, 1 << (size - 1).bit_length())


def warps_for(nodes: int) -> int:
    return 8 if nodes > 32 else 4


def decline(problem: RecurrenceProblem) -> str | None:
    """Why the kernel cannot take a problem, or None."""
    device = problem.values.device.type
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"its kernel needs a CUDA device, and this is {device}"
    if problem.dtype != torch.float32:
        return "its kernel computes in float32"
    if len(problem.lineage) > MOST_NODES:
        return f"its kernel holds {MOST_NODES} nodes, and there are {len(problem.lineage)}"
    if problem.keys.shape[2] > MOST_KEYS:
        return f"key size {problem.keys.shape[2]} is above {MOST_KEYS}"
    return None


def verify(problem: RecurrenceProblem) -> tuple[Tensor, Kept]:
    """Outputs [N, H, V], and what is kept to commit any path."""
    from reanchor.recurrent import solve_kernels

    lineage, dtype = problem.lineage, torch.float32
    queries, keys, values, state = (
        each.to(dtype).contiguous() for each in (problem.queries, problem.keys, problem.values, problem.state)
    )
    sums = lineage.path_sums(problem.decay)
    since_root = sums.exp().to(dtype).contiguous()
    delta = problem.strength is not None
    strength = problem.strength.to(dtype).T.contiguous() if problem.strength is not None else since_root
    nodes, heads, size = values.shape
    outputs, writes = torch.empty_like(values), values.new_empty(heads, nodes, size)
    block = min(COLUMNS, padded(size))
    solve_kernels.tree[(heads, -(-size // block))](
        queries, keys, values, lineage.decays(sums, dtype).contiguous(), since_root, strength, state, outputs, writes,
        nodes, heads, keys.shape[1],
        GROUPS=problem.groups, K_SIZE=keys.shape[2], V_SIZE=size,
        BLOCK_N=padded(nodes), BLOCK_K=PIECE, BLOCK_V=block, DELTA=delta,
        num_warps=warps_for(nodes), num_stages=1,
    )  # fmt: skip
    return outputs, Kept(keys.transpose(0, 1), writes, sums)
