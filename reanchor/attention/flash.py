"""The flash-attention backend: dense flash-attention over the prefix with its log-sum-exp, our kernel over
the tail, both merged in fp32. A window that hides part of the prefix goes to our split-KV kernel whole:
flash-attention cuts windows by index, a tree needs them cut by depth.

The prefix goes to the first of: flash-attention 3, flash-attention 2 (both read the length on the device),
torch's own flash kernels (which need the length on the host).
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reanchor.attention import triton
from reanchor.attention.problem import Problem

# flash-attention 3 as it installs itself, then within its newer package, then 2
EXTERNAL = ("flash_attn_interface", "flash_attn_3.flash_attn_interface", "flash_attn")
ENTRY = "flash_attn_with_kvcache"
HALF = (torch.bfloat16, torch.float16)


@functools.cache
def external() -> str | None:
    """The first flash-attention package that can be imported and has what is called: an install built for another torch
    is found and fails, and flash-attention 4 alone has the name of 2.
    """
    return next((name for name in EXTERNAL if usable(name)), None)


def usable(name: str) -> bool:
    try:
        return callable(getattr(importlib.import_module(name), ENTRY, None))
    except Exception:  # a shared library of another torch raises what it likes
        return False


def decline(problem: Problem) -> str | None:
    refusal = triton.decline(problem)
    if refusal is not None:
        return f"its tail kernel: {refusal}"
    if problem.queries.device.type == "cuda" and problem.queries.dtype not in HALF:
        return "flash-attention computes in bfloat16 or float16"
    if problem.head_size % 8:
        return f"head size {problem.head_size} is no multiple of 8"
    if external() is not None:
        return None
    if problem.softcap is not None:
        return "torch's flash kernels have no soft cap (flash_attn is not installed)"
    if problem.sees.known_length() is None:
        return "torch's flash kernels need the committed length on the host (flash_attn is not installed)"
    return None


def attend(problem: Problem) -> Tensor:
    """[N, Hq, D]"""
    if problem.binding_window is not None:
        return triton.attend(problem)
    problem = replace(problem, window=None)  # it hides nothing
    prefix = through_package(problem, external()) if external() else through_torch(problem)
    parts, lse = triton.split_parts(problem, prefix=False)
    return triton.merge_parts(problem, parts, lse, prefix)


def through_package(problem: Problem, name: str | None) -> tuple[Tensor, Tensor]:
    """Prefix output [N, Hq, D] and natural log-sum-exp [N, Hq]."""
    package: Any = importlib.import_module(str(name))
    out, lse, *_ = package.flash_attn_with_kvcache(
        problem.queries[None],
        problem.keys.transpose(0, 1)[None],  # [1, S, Hkv, D]
        problem.values.transpose(0, 1)[None],
        cache_seqlens=problem.sees.length,
        softmax_scale=problem.scale,
        causal=False,
        softcap=problem.softcap or 0.0,
        num_splits=0,
        return_softmax_lse=True,
    )
    return out[0], lse[0].transpose(0, 1)


def through_torch(problem: Problem) -> tuple[Tensor, Tensor] | None:
    """The same by torch; None when the prefix is empty."""
    length = problem.sees.known_length()
    if not length:
        return None
    keys, values = problem.keys[:, :length], problem.values[:, :length]  # [Hkv, L, D]
    if problem.queries.device.type == "cpu":
        rows = problem.folded()[None]  # [1, Hkv, G*N, D]
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = kernel(rows, keys[None], values[None], scale=problem.scale)
        return problem.unfolded(out[0]), lse[0].reshape(problem.queries.shape[1], -1).transpose(0, 1)
    count = problem.queries.shape[0]
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        problem.queries[None], keys.transpose(0, 1)[None], values.transpose(0, 1)[None],
        None, None, count, length, 0.0, False, False, scale=problem.scale,
    )  # fmt: skip
    return out[0], lse[0].transpose(0, 1)
