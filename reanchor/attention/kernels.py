"""The Triton kernels: split-KV attention of a prefix and a tail, and the merge of its partial results.

Letters as in `problem.py`. The program (m, h, s) attends BLOCK_M rows of key head h, row r being query r
// G of group head r % G, over the s-th part of the key rows. The grid is the same for every L: a program
reads L on the device and works out its own part, so one captured graph serves every length. Log-sum-exps
are fp32 and to base 2 inside the file. This file imports triton; only `triton.py` and `flash.py` import
this file, and only when asked to attend.
"""

# mypy: disable-error-code="no-untyped-def"
# Arguments of kernels have no Python types.

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(K, V, n, d, k_s, k_d, v_s, v_d, D: tl.constexpr, UPCAST: tl.constexpr):
    """Keys [D_PAD, BLOCK_N] and values [BLOCK_N, D_PAD] of rows n."""
    k_at = K + n[None, :] * k_s + d[:, None] * k_d
    v_at = V + n[:, None] * v_s + d[None, :] * v_d
    if d.shape[0] == D:
        k = tl.load(k_at)
        v = tl.load(v_at)
    else:
        k = tl.load(k_at, mask=(d < D)[:, None], other=0.0)
        v = tl.load(v_at, mask=(d < D)[None, :], other=0.0)
    if UPCAST:  # the interpreter multiplies the bit patterns of bfloat16
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    return k, v


@triton.jit
def _scores(q, k, scale, softcap, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):
    """[BLOCK_M, BLOCK_N] scores to base 2."""
    s = tl.dot(q, k, input_precision=PRECISION) * scale
    if SOFTCAP:
        x = s / softcap
        e = tl.exp2(tl.abs(x) * -2.8853900817779268)  # exp(-2|x|): tanh by a power that cannot overflow
        t = (1.0 - e) / (1.0 + e)
        s = tl.where(x < 0, -t, t) * softcap
    return s * LOG2_E


@triton.jit
def _absorb(s, v, m, z, acc, PRECISION: tl.constexpr):
    """Fold one block of scores and values into the running maximum, sum and output."""
    m_new = tl.maximum(m, tl.max(s, 1))
    safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # a row that has seen nothing yet
    p = tl.exp2(s - safe[:, None])
    shrink = tl.exp2(m - safe)
    z = z * shrink + tl.sum(p, 1)
    acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
    return m_new, z, acc


@triton.jit
def _tail_seen(j0, query, depth, q_ok, Words, TailDepths, w_stride, T, window,
               BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):  # fmt: skip
    """[BLOCK_M, BLOCK_N] bool: which tail rows j0.. each query sees. j0 and BLOCK_N are multiples of 32."""
    column = tl.arange(0, BLOCK_N)
    at = Words + query * w_stride + j0 // 32
    word = tl.load(at, mask=q_ok, other=0)[:, None]
    if BLOCK_N == 64:
        second = tl.load(at + tl.where(j0 + 32 < T, 1, 0), mask=q_ok, other=0)[:, None]
        word = tl.where((column < 32)[None, :], word, second)
    seen = (((word >> (column % 32)[None, :]) & 1) != 0) & (j0 + column < T)[None, :]
    if WINDOW:
        tail_depth = tl.load(TailDepths + j0 + column, mask=j0 + column < T, other=0)
        seen = seen & (tl.abs(depth[:, None] - tail_depth[None, :]) < window)
    return seen


@triton.jit
def split(  # noqa: PLR0915 (a kernel is one function)
    Q, K, V, Length, Words, Depths, TailDepths, Out, Lse,  # fmt: skip
    scale, softcap, window,
    q_n, q_h, q_d, k_h, k_s, k_d, v_h, v_s, v_d, w_stride,
    N, T, HQ,
    G: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PREFIX: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Out [SPLITS, N, HQ, D] fp32 and Lse [SPLITS, N, HQ] of each part; without a key, Lse is -inf."""
    head = tl.program_id(1)
    part = tl.program_id(2)
    length = tl.load(Length)
    first = 0
    if not PREFIX:
        first = length
    elif WINDOW:
        first = tl.maximum(length + 1 - window, 0)  # a query of depth 0 sees furthest back
    # Keys come in blocks: those of the prefix from `first` on, then those of the tail from its own start on.
    prefix_blocks = tl.cdiv(length - first, BLOCK_N)
    blocks = prefix_blocks + tl.cdiv(T, BLOCK_N)
    share = tl.cdiv(blocks, SPLITS)
    start = part * share
    end = tl.minimum(start + share, blocks)
    prefix_end = tl.minimum(end, prefix_blocks)

    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    query = row // G
    q_head = head * G + row % G
    q_ok = query < N
    d = tl.arange(0, D_PAD)
    d_ok = d < D
    q = tl.load(
        Q + query[:, None] * q_n + q_head[:, None] * q_h + d[None, :] * q_d,
        mask=q_ok[:, None] & d_ok[None, :],
        other=0.0,
    )
    depth = tl.load(Depths + query, mask=q_ok, other=0)
    if UPCAST:
        q = q.to(tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    z = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D_PAD], tl.float32)
    k_head = K + head.to(tl.int64) * k_h
    v_head = V + head.to(tl.int64) * v_h
    column = tl.arange(0, BLOCK_N)

    if PREFIX:
        # Blocks [clear, ragged) are whole and inside every query's window: no mask. Those before are cut by a
        # window, the one behind, if any, is the unfinished last block. Rows that do not exist are never read:
        # the last one that does stands in for them.
        clear = tl.minimum(start, prefix_end)
        if WINDOW:
            hidden = tl.maximum(length + tl.max(depth, 0) + 1 - window - first, 0)
            clear = tl.minimum(tl.maximum(tl.cdiv(hidden, BLOCK_N), start), prefix_end)
        ragged = tl.maximum(tl.minimum(prefix_end, (length - first) // BLOCK_N), clear)
        cut = tl.maximum(clear - start, 0)
        for i in range(cut + prefix_end - ragged):
            n = first + tl.where(i < cut, start + i, ragged + i - cut) * BLOCK_N + column
            k, v = _rows(k_head, v_head, tl.minimum(n, length - 1), d, k_s, k_d, v_s, v_d, D, UPCAST)
            s = _scores(q, k, scale, softcap, SOFTCAP, PRECISION)
            seen = (n < length)[None, :]
            if WINDOW:
                seen = seen & ((length + depth)[:, None] - n[None, :] < window)
            m, z, acc = _absorb(tl.where(seen, s, float("-inf")), v, m, z, acc, PRECISION)
        for block in range(clear, ragged):
            n = first + block * BLOCK_N + column
            k, v = _rows(k_head, v_head, n, d, k_s, k_d, v_s, v_d, D, UPCAST)
            m, z, acc = _absorb(_scores(q, k, scale, softcap, SOFTCAP, PRECISION), v, m, z, acc, PRECISION)
    for block in range(tl.maximum(start, prefix_blocks), end):
        j0 = (block - prefix_blocks) * BLOCK_N
        n = length + tl.minimum(j0 + column, T - 1)
        k, v = _rows(k_head, v_head, n, d, k_s, k_d, v_s, v_d, D, UPCAST)
        s = _scores(q, k, scale, softcap, SOFTCAP, PRECISION)
        seen = _tail_seen(j0, query, depth, q_ok, Words, TailDepths, w_stride, T, window, BLOCK_N, WINDOW)
        m, z, acc = _absorb(tl.where(seen, s, float("-inf")), v, m, z, acc, PRECISION)

    empty = z == 0.0
    whole = tl.where(empty, 1.0, z)
    out = (part * N + query) * HQ + q_head
    tl.store(
        Out + out[:, None].to(tl.int64) * D + d[None, :],
        acc / whole[:, None],
        mask=q_ok[:, None] & d_ok[None, :],
    )
    tl.store(Lse + out, tl.where(empty, float("-inf"), m + tl.log2(whole)), mask=q_ok)


@triton.jit
def merge(
    Parts, Lse, Prefix, PrefixLse, Out,  # fmt: skip
    ROWS, HQ, p_n, p_h, l_n, l_h,
    D: tl.constexpr, D_PAD: tl.constexpr, SPLITS: tl.constexpr, SPLITS_PAD: tl.constexpr,
    PREFIX: tl.constexpr,
):  # fmt: skip
    """Out [N, HQ, D] from the parts and, with PREFIX, a dense attention over the prefix, its Lse natural."""
    row = tl.program_id(0)  # row = query * HQ + head
    part = tl.arange(0, SPLITS_PAD)
    d = tl.arange(0, D_PAD)
    d_ok = d < D
    lse = tl.load(Lse + part * ROWS + row, mask=part < SPLITS, other=float("-inf"))
    peak = tl.max(lse, 0)
    if PREFIX:
        query = row // HQ
        head = row % HQ
        p_lse = tl.load(PrefixLse + query * l_n + head * l_h).to(tl.float32) * LOG2_E
        p_lse = tl.where(
            p_lse == float("inf"), float("-inf"), p_lse
        )  # flash-attention's mark of an empty range
        peak = tl.maximum(peak, p_lse)
    weight = tl.exp2(lse - peak)  # the peak is finite: every query sees itself
    total = tl.sum(weight, 0)
    if PREFIX:
        p_weight = tl.exp2(p_lse - peak)
        total += p_weight
    parts = tl.load(
        Parts + (part[:, None] * ROWS + row).to(tl.int64) * D + d[None, :],
        mask=(part < SPLITS)[:, None] & d_ok[None, :],
        other=0.0,
    )
    out = tl.sum(parts * (weight / total)[:, None], 0)
    if PREFIX:
        prefix = tl.load(Prefix + query * p_n + head * p_h + d, mask=d_ok, other=0.0).to(tl.float32)
        out += tl.where(
            p_weight > 0, prefix * (p_weight / total), 0.0
        )  # an empty range may have left anything there
    tl.store(Out + row.to(tl.int64) * D + d, out.to(Out.dtype.element_ty), mask=d_ok)
