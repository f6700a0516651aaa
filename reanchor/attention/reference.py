"""The definition of the room: masked softmax attention in plain torch, in float64 when given float64. It
knows no speed."""

from __future__ import annotations

import torch
from torch import Tensor

from reanchor.attention.problem import Problem


def decline(problem: Problem) -> str | None:
    if problem.sees.known_length() is None:
        return "needs the committed length on the host, and only the device has it here"
    return None


def attend(problem: Problem) -> Tensor:
    """[N, Hq, D]"""
    window = problem.binding_window
    start, end = problem.sees.rows(window)
    work = torch.promote_types(problem.queries.dtype, torch.float32)
    keys, values = (
        buffer[:, start:end].to(work) for buffer in (problem.keys, problem.values)
    )  # [Hkv, rows, D]
    scores = problem.folded().to(work) @ keys.transpose(1, 2) * problem.scale  # [Hkv, G*N, rows]
    if problem.softcap is not None:
        scores = torch.tanh(scores / problem.softcap) * problem.softcap
    seen = problem.sees.mask(window).repeat(problem.groups, 1)  # [G*N, rows]
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return problem.unfolded((weights @ values).to(problem.queries.dtype))
