"""The recurrence over a whole tree at once, in plain torch: no state a node, and with the delta rule one triangular
solve.

With G the sums of decays along the path and D = exp(G_v - G_u) where u is v or an ancestor, else 0, unrolling the
definition in `problem` gives, strictly above standing for v != u,

    write_v + strength_v sum_u [strictly above] D_vu (key_v . key_u) write_u = strength_v (value_v - exp(G_v) key_v S)
    output_v = exp(G_v) query_v S + sum_u D_vu (query_v . key_u) write_u
    S_v = exp(G_v) S + sum_u D_vu key_u^T write_u

Parents stand before children, so the system is lower triangular with ones on its diagonal. It is the chunked form of a
sequence with the ancestors in the place of all that came before. Exact but for rounding: the order of sums differs from
stepping's. Siblings meet only in products with 0, so what they hold must be finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reanchor.recurrent.recurrence import Kept, RecurrenceProblem


def by_head(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """[heads, N, size] from [N, heads, size]."""
    return rows.to(dtype).transpose(0, 1)


def read(rows: Tensor, state: Tensor) -> Tensor:
    """[H, N, V]: rows [Hk, N, K] times the states [H, K, V] of the heads that read them."""
    shared = state.unflatten(0, (len(rows), -1))  # [Hk, H / Hk, K, V]
    return (rows[:, None] @ shared).flatten(0, 1)


def verify(problem: RecurrenceProblem) -> tuple[Tensor, Kept]:
    """Outputs [N, H, V], and what is kept to commit any path."""
    dtype, lineage = problem.dtype, problem.lineage
    queries, keys, values = (by_head(rows, dtype) for rows in (problem.queries, problem.keys, problem.values))
    state = problem.state.to(dtype)
    sums = lineage.path_sums(problem.decay)  # [H, N]
    since_root = sums.exp().to(dtype)[:, :, None]  # [H, N, 1]
    decays = lineage.decays(sums, dtype)  # [H, N, N]
    if problem.strength is not None:
        strength = by_head(problem.strength[:, :, None], dtype)  # [H, N, 1]
        alike = (keys @ keys.mT).repeat_interleave(problem.groups, 0)  # [H, N, N]
        wanted = strength * (values - since_root * read(keys, state))
        values = torch.linalg.solve_triangular(
            strength * alike * decays, wanted, upper=False, unitriangular=True
        )
    near = (queries @ keys.mT).repeat_interleave(problem.groups, 0) * decays
    outputs = since_root * read(queries, state) + near @ values
    return outputs.transpose(0, 1), Kept(keys, values, sums)


def commit(
    state: Tensor, kept: Kept, path: Tensor, transposed: bool = False, out: Tensor | None = None
) -> Tensor:
    """The state [H, K, V] after the last node of a path [L] from the root; the one before stays as it is.

    transposed: states are [H, V, K]. out: where to write, as the pages of a new state cost more than its arithmetic.
    """
    dtype = kept.writes.dtype
    sums = kept.sums[:, path]  # [H, L]
    last = sums[:, -1:]
    writes = kept.writes[:, path] * (last - sums).exp().to(dtype)[:, :, None]  # [H, L, V]
    keys = kept.keys[:, path].repeat_interleave(len(writes) // len(kept.keys), 0)  # [H, L, K]
    after = torch.mul(state.to(dtype), last.exp().to(dtype)[:, :, None], out=out)
    return after.baddbmm_(writes.mT, keys) if transposed else after.baddbmm_(keys.mT, writes)
