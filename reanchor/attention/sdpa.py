"""torch's scaled_dot_product_attention on any device: group heads folded into query rows, the cache
sliced, no copy of a key. On CPU a long prefix goes unmasked through the fused kernel and the tail is
merged in by its log-sum-exp, so that no mask as long as the context exists. It knows no soft cap."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from reanchor.attention.problem import Problem

# Below this many prefix rows one masked call beats two calls and a merge (CPU, 1 to 128 nodes, D 64 to 256).
SPLIT_FROM = 512


def decline(problem: Problem) -> str | None:
    if problem.softcap is not None:
        return "scaled_dot_product_attention has no soft cap"
    if problem.sees.known_length() is None:
        return "needs the committed length on the host, and only the device has it here"
    return None


def attend(problem: Problem) -> Tensor:
    """[N, Hq, D]"""
    rows = problem.folded()[None]  # [1, Hkv, G*N, D]
    if splits(problem):
        return problem.unfolded(prefix_and_tail(problem, rows)[0])
    start, end = problem.sees.rows(problem.binding_window)
    keys, values = (buffer[None, :, start:end] for buffer in (problem.keys, problem.values))
    out = scaled_dot_product_attention(rows, keys, values, bias(problem), scale=problem.scale)
    return problem.unfolded(out[0])


def splits(problem: Problem) -> bool:
    """Whether prefix and tail are attended apart; not in half precision, which would round both results."""
    queries, length = problem.queries, problem.sees.known_length()
    exact = queries.device.type == "cpu" and queries.dtype in (torch.float32, torch.float64)
    return (
        exact and not problem.sees.complete and problem.binding_window is None and (length or 0) >= SPLIT_FROM
    )


def prefix_and_tail(problem: Problem, rows: Tensor) -> Tensor:
    """[1, Hkv, G*N, D]"""
    length = problem.sees.known_length()
    end = problem.sees.rows(None)[1]
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    parts = []
    for span, mask in ((slice(0, length), None), (slice(length, end), tail_bias(problem))):
        keys, values = (buffer[None, :, span] for buffer in (problem.keys, problem.values))
        parts.append(kernel(rows, keys, values, attn_mask=mask, scale=problem.scale))
    (prefix, prefix_lse), (tail, tail_lse) = parts  # [1, Hkv, G*N, D], [1, Hkv, G*N]
    share = torch.sigmoid(prefix_lse - tail_lse)[..., None].to(prefix.dtype)  # of the softmax's mass
    return torch.lerp(tail, prefix, share)


def bias(problem: Problem) -> Tensor | None:
    """[G*N, rows], added to the scores; None when every query sees every row."""
    window = problem.binding_window
    if window is None and problem.sees.complete:
        return None
    return additive(problem, ("bias", window), lambda: problem.sees.mask(window))


def tail_bias(problem: Problem) -> Tensor:
    return additive(problem, ("tail bias",), problem.sees.tail_mask)  # [G*N, T]


def additive(problem: Problem, key: tuple[object, ...], make: Callable[[], Tensor]) -> Tensor:
    """`make()` as an additive mask with a row for every folded query, made once a pass: layers share it."""
    memo, key = problem.sees.memo, (*key, problem.groups, problem.queries.dtype)
    if key not in memo:
        seen = make()
        zeros = problem.queries.new_zeros(seen.shape)
        memo[key] = zeros.masked_fill_(~seen, float("-inf")).repeat(problem.groups, 1)
    return memo[key]
