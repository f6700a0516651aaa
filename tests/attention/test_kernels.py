"""Every Triton kernel against the definition. On a CUDA device as they are; on a CPU under Triton's
interpreter, in the process that test_interpreter.py starts (the interpreter must be chosen before the
kernels are imported)."""

from __future__ import annotations

import os
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import torch

from reanchor.attention import flash, reference
from reanchor.attention import triton as backend
from reanchor.attention.problem import Visibility
from tests.attention.problems import BOUND, blocks, error, in_double, problem, random_trie

pytest.importorskip("triton", reason="triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs under Triton's interpreter, see test_interpreter.py", allow_module_level=True)
HALVES = [torch.float16, torch.bfloat16]


def builder(nodes, length, **more):
    sees, depths = random_trie(nodes, np.random.default_rng(nodes))
    return problem(sees, depths, length, device=DEVICE, **more)


def check(given, attend=backend.attend):
    out = attend(given)
    assert out.dtype == given.queries.dtype and out.shape == given.queries.shape
    assert error(out, reference.attend(in_double(given))) < BOUND[given.queries.dtype]


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 100])
@pytest.mark.parametrize("nodes", [1, 7, 33])
def test_lengths_and_nodes(length, nodes):
    check(builder(nodes, length, heads=(2, 1), size=16))


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (8, 2), (8, 1)])
def test_group_sizes(heads):
    check(builder(7, 70, heads=heads, size=16))


@pytest.mark.parametrize("size", [64, 80, 96, 128, 192, 256])
def test_head_sizes(size):
    check(builder(5, 37, heads=(2, 1), size=size))


@pytest.mark.parametrize("window", [1, 2, 5, 33, 64, 100, 1000])
@pytest.mark.parametrize("length", [0, 40, 130])
def test_windows(window, length):
    check(builder(33, length, heads=(2, 1), size=16, window=window))


def test_soft_cap():
    check(builder(7, 40, heads=(2, 1), size=16, softcap=1.5))
    check(builder(7, 40, heads=(2, 1), size=16, softcap=20.0, window=17))


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision(dtype):
    check(builder(33, 100, heads=(4, 2), size=64, dtype=dtype))
    check(builder(9, 70, heads=(4, 2), size=64, dtype=dtype, window=50, softcap=10.0))


@pytest.mark.parametrize("window", [None, 12])
def test_draft_blocks(window):
    sees, depths, tail_depths = blocks(retained=5, size=8)
    check(problem(sees, depths, 33, (2, 1), tail_depths=tail_depths, window=window, device=DEVICE))


@pytest.mark.parametrize("window", [None, 20])
def test_padding_to_a_bucket_changes_nothing(window):
    sees, depths = random_trie(11, np.random.default_rng(2))
    given = problem(sees, depths, 50, (2, 1), window=window, device=DEVICE)
    padded = np.eye(16, dtype=bool)
    padded[:11, :11] = sees
    bigger = Visibility.pack(padded, [*depths, *[0] * 5], 50, DEVICE)
    grown = replace(given, queries=torch.cat([given.queries, given.queries[:5]]), sees=bigger)
    for buffer in (grown.keys, grown.values):
        buffer[:, 61:66] = 3.0
    assert torch.allclose(backend.attend(grown)[:11], backend.attend(given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("splits", [1, 2, 3, 7, 16])
def test_any_number_of_parts(splits):
    """More parts than blocks of keys leave empty ones."""
    for given in (
        builder(7, 100, heads=(2, 1)),
        builder(7, 0, heads=(2, 1)),
        builder(7, 100, heads=(2, 1), window=9),
    ):
        out = backend.merge_parts(given, *backend.split_parts(given, prefix=True, splits=splits))
        assert error(out, reference.attend(in_double(given))) < BOUND[torch.float32]


def test_one_launch_serves_every_length():
    """The length is changed in place on the device, as between two replays of a graph."""
    given = builder(7, 100, heads=(2, 1))
    unknown = replace(given.sees, host_length=None)
    for length in (0, 1, 31, 64, 93):
        given.sees.length.fill_(length)
        known = replace(given, sees=replace(unknown, host_length=length, memo={}))
        out = backend.attend(replace(given, sees=unknown))
        assert error(out, reference.attend(in_double(known))) < BOUND[torch.float32]


@pytest.mark.parametrize("length", [0, 1, 40, 100])
@pytest.mark.parametrize("dtype", [torch.float32] if DEVICE == "cpu" else HALVES)
def test_flash_merges_prefix_and_tail(length, dtype):
    if flash.external() is not None and DEVICE == "cpu":
        pytest.skip("flash_attn is installed and needs a CUDA device")
    given = builder(33, length, heads=(4, 2), size=16, dtype=dtype)
    assert flash.decline(given) is None
    check(given, flash.attend)


@pytest.mark.parametrize("window", [50, 500])
def test_flash_serves_windows(window):
    check(
        builder(7, 100, heads=(2, 1), dtype=torch.float32 if DEVICE == "cpu" else HALVES[0], window=window),
        flash.attend,
    )


def package_like_flash_attn(lengths_seen):
    """Flash-attention's call, and its habit of marking an empty range with +inf (here over NaN too)."""

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, *, cache_seqlens, softmax_scale, causal, softcap, num_splits, return_softmax_lse
    ):
        assert return_softmax_lse and not causal
        length = int(cache_seqlens)
        lengths_seen.append(length)
        groups = q.shape[2] // k_cache.shape[2]
        keys, values = (
            cache[0, :length].double().repeat_interleave(groups, 1) for cache in (k_cache, v_cache)
        )  # [L, Hq, D]
        scores = torch.einsum("nhd,lhd->hnl", q[0].double(), keys) * softmax_scale
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        lse = scores.logsumexp(-1) if length else scores.new_full(scores.shape[:2], float("inf"))
        out = torch.einsum("hnl,lhd->nhd", scores.softmax(-1), values)
        out = out if length else torch.full_like(out, float("nan"))
        return out.to(q.dtype)[None], lse.float()[None]

    module = types.ModuleType("flash_attn")
    module.flash_attn_with_kvcache = flash_attn_with_kvcache
    return module


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_flash_attn_is_used_when_installed(monkeypatch, softcap):
    seen = []
    monkeypatch.setitem(sys.modules, "flash_attn", package_like_flash_attn(seen))
    monkeypatch.setattr(flash, "external", lambda: "flash_attn")
    for length in (0, 50):
        given = builder(7, length, heads=(4, 2), dtype=torch.float16, softcap=softcap)
        given = replace(given, sees=replace(given.sees, host_length=None))
        assert flash.decline(given) is None
        check(given, flash.attend)
    assert seen == [0, 50]


@pytest.mark.slow
@pytest.mark.parametrize(
    "nodes, length, heads, size, dtype, rule",
    [
        (100, 333, (9, 3), 64, torch.float32, {}),
        (33, 1000, (4, 1), 128, torch.float32, {"window": 300, "softcap": 30.0}),
        (256, 1000, (3, 1), 64, torch.float16, {}),
        (100, 150, (4, 1), 256, torch.float16, {"softcap": 30.0}),
        (256, 200, (4, 1), 128, torch.bfloat16, {}),
        (256, 64, (8, 8), 64, torch.bfloat16, {"window": 40}),
        (256, 100, (4, 1), 256, torch.bfloat16, {"window": 70, "softcap": 30.0}),
    ],
)
def test_full_size(nodes, length, heads, size, dtype, rule):
    check(builder(nodes, length, heads=heads, size=size, dtype=dtype, **rule))


@pytest.mark.slow
@pytest.mark.parametrize("length, window", [(31, None), (300, 64)])
def test_full_size_draft_blocks(length, window):
    sees, depths, tail_depths = blocks(retained=15, size=16)
    check(problem(sees, depths, length, (4, 2), 64, tail_depths=tail_depths, window=window, device=DEVICE))
