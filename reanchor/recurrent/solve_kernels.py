"""The Triton kernel of the recurrence over a tree, for trees that one program holds whole.

Letters as in `problem.py`. The program (h, b) computes all nodes of value head h for the b-th block of value columns:
the solve by forward substitution, one node after the other, then the outputs. Products are in full single precision.
Rows beyond N have decays, strengths and values of 0, so they write nothing. This file imports triton; only `triton.py`
imports this file, and only when asked to verify.
"""

# mypy: disable-error-code="no-untyped-def"
# Arguments of kernels have no Python types.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(At, n, d, N, row, D):
    """Columns d < D of the rows n < N, which stand `row` values apart; 0 beyond."""
    return tl.load(At + n[:, None] * row + d[None, :], mask=(n < N)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def tree(
    Q, K, V, Decays, Since, Strength, State, Out, Writes,  # fmt: skip
    N, H, HK,
    GROUPS: tl.constexpr, K_SIZE: tl.constexpr, V_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    DELTA: tl.constexpr,
):  # fmt: skip
    """Q, K [N, HK, K_SIZE]; V, Out [N, H, V_SIZE]; Decays [H, N, N]; Since, Strength [H, N]; State [H, K_SIZE, V_SIZE];
    Writes [H, N, V_SIZE]; all contiguous.
    """
    head = tl.program_id(0)
    key_head = head // GROUPS
    n = tl.arange(0, BLOCK_N)
    v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    within = (n < N)[:, None] & (v < V_SIZE)[None, :]

    alike = tl.zeros((BLOCK_N, BLOCK_N), dtype=tl.float32)
    near = tl.zeros((BLOCK_N, BLOCK_N), dtype=tl.float32)
    known = tl.zeros((BLOCK_N, BLOCK_V), dtype=tl.float32)
    out = tl.zeros((BLOCK_N, BLOCK_V), dtype=tl.float32)
    for start in range(0, K_SIZE, BLOCK_K):  # in pieces, for the registers
        k = start + tl.arange(0, BLOCK_K)
        state_at = State + head * K_SIZE * V_SIZE + k[:, None] * V_SIZE + v[None, :]
        state = tl.load(state_at, mask=(k < K_SIZE)[:, None] & (v < V_SIZE)[None, :], other=0.0)
        keys = _tile(K + key_head * K_SIZE, n, k, N, HK * K_SIZE, K_SIZE)
        queries = _tile(Q + key_head * K_SIZE, n, k, N, HK * K_SIZE, K_SIZE)
        near += tl.dot(queries, tl.trans(keys), input_precision="ieee")
        out += tl.dot(queries, state, input_precision="ieee")
        if DELTA:
            alike += tl.dot(keys, tl.trans(keys), input_precision="ieee")
            known += tl.dot(keys, state, input_precision="ieee")

    decays = _tile(Decays + head * N * N, n, n, N, N, N)
    since = tl.load(Since + head * N + n, mask=n < N, other=0.0)
    writes = tl.load(V + n[:, None] * (H * V_SIZE) + head * V_SIZE + v[None, :], mask=within, other=0.0)
    if DELTA:
        strength = tl.load(Strength + head * N + n, mask=n < N, other=0.0)
        system = tl.where(n[:, None] > n[None, :], alike * decays * strength[:, None], 0.0)
        writes = strength[:, None] * (writes - since[:, None] * known)
        for node in range(1, N):
            row = tl.sum(tl.where((n == node)[:, None], system, 0.0), 0)  # [BLOCK_N]
            before = tl.sum(row[:, None] * writes, 0)  # [BLOCK_V]
            writes = tl.where((n == node)[:, None], writes - before[None, :], writes)

    out = since[:, None] * out + tl.dot(near * decays, writes, input_precision="ieee")
    tl.store(Out + n[:, None] * (H * V_SIZE) + head * V_SIZE + v[None, :], out, mask=within)
    tl.store(Writes + head * N * V_SIZE + n[:, None] * V_SIZE + v[None, :], writes, mask=within)
