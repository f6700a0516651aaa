"""The definition of the room: every node's state made of its parent's, one after the other. It knows no speed."""

from __future__ import annotations

import torch
from torch import Tensor

from reanchor.recurrent.recurrence import RecurrenceProblem


def states(problem: RecurrenceProblem) -> list[Tensor]:
    """[H, K, V] after each node."""
    dtype = problem.dtype
    keys = problem.keys.to(dtype).repeat_interleave(problem.groups, 1)
    made: list[Tensor] = []
    for node, parent in enumerate(problem.lineage.parents):
        state = problem.state.to(dtype) if parent < 0 else made[parent]
        state = state * problem.decay[node].to(dtype).exp()[:, None, None]
        write = problem.values[node].to(dtype)  # [H, V]
        if problem.strength is not None:
            known = torch.einsum("hk,hkv->hv", keys[node], state)
            write = problem.strength[node].to(dtype)[:, None] * (write - known)
        made.append(state + keys[node][:, :, None] * write[:, None, :])
    return made


def verify(problem: RecurrenceProblem) -> Tensor:
    """[N, H, V]"""
    queries = problem.queries.to(problem.dtype).repeat_interleave(problem.groups, 1)
    outputs = [torch.einsum("hk,hkv->hv", queries[node], state) for node, state in enumerate(states(problem))]
    return torch.stack(outputs)
