"""The Triton kernel against the definition. On a CUDA device as it is; on a CPU under Triton's interpreter, in a
process that a test here starts; compiled for sm_90 without either.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reanchor.recurrent import definition, solve
from reanchor.recurrent import triton_solve as form
from reanchor.recurrent.recurrence import RecurrenceProblem

from .test_forms import random_lineage, random_problem

pytest.importorskip("triton", reason="triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
kernels_run = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED, reason="runs under Triton's interpreter, in a process of its own"
)
SHAPES = {"shared keys": (2, 6, 16, 16), "odd sizes": (1, 2, 20, 40), "one head": (1, 1, 64, 32)}


def on_device(nodes: int, shape: tuple[int, int, int, int], delta: bool, **more) -> RecurrenceProblem:
    lineage = random_lineage(nodes, np.random.default_rng(nodes), chain=0.6)
    problem = random_problem(lineage, shape, delta, dtype=torch.float32, **more)
    names = ("queries", "keys", "values", "decay", "state")
    moved = {name: getattr(problem, name).to(DEVICE) for name in names}
    strength = None if problem.strength is None else problem.strength.to(DEVICE)
    return replace(problem, **moved, strength=strength, lineage=lineage.on(torch.device(DEVICE)))


@kernels_run
@pytest.mark.parametrize("delta", [True, False], ids=["delta", "scan"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nodes", [1, 2, 23, 64])
def test_the_kernel_is_the_definition(nodes, shape, delta):
    problem = on_device(nodes, SHAPES[shape], delta)
    assert form.decline(problem) is None
    outputs, kept = form.verify(problem)
    torch.testing.assert_close(outputs, definition.verify(problem), rtol=1e-4, atol=1e-5)
    _, want = solve.verify(problem)
    torch.testing.assert_close(kept.writes, want.writes, rtol=1e-4, atol=1e-5)
    path = problem.lineage.sees[-1].nonzero()[:, 0]
    committed = solve.commit(problem.state, kept, path)
    torch.testing.assert_close(committed, definition.states(problem)[-1], rtol=1e-4, atol=1e-5)


@kernels_run
def test_what_the_kernel_cannot_take_it_declines():
    for problem in (
        on_device(65, SHAPES["one head"], True),
        replace(on_device(3, (1, 1, 16, 16), True), values=torch.zeros(3, 1, 16, dtype=torch.float64)),
    ):
        assert form.decline(problem) is not None


@pytest.mark.skipif(DEVICE == "cuda" or INTERPRETED, reason="runs on the device itself, or is running")
def test_the_kernel_under_the_interpreter():
    assert "needs a CUDA device" in str(form.decline(on_device(2, SHAPES["one head"], True)))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            __file__,
            "-k",
            "definition or cannot",
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 25, done.stdout[-2000:]


@pytest.mark.skipif(INTERPRETED, reason="compiles")
@pytest.mark.parametrize("delta", [True, False], ids=["delta", "scan"])
@pytest.mark.parametrize("nodes, key, value", [(16, 128, 128), (64, 128, 128), (64, 128, 64)])
def test_the_kernel_compiles_for_hopper(nodes, key, value, delta, tmp_path):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from reanchor.recurrent import solve_kernels
    from tests.attention.test_compilation import SHARED_LIMIT, spills

    constants = {
        "GROUPS": 2, "K_SIZE": key, "V_SIZE": value, "BLOCK_N": form.padded(nodes), "BLOCK_K": form.PIECE,
        "BLOCK_V": form.COLUMNS, "DELTA": delta,
    }  # fmt: skip
    signature = {
        name: "constexpr" if name in constants else "i32" if name in ("N", "H", "HK") else "*fp32"
        for name in solve_kernels.tree.arg_names
    }
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(solve_kernels.tree.arg_names)
        if signature[name] == "*fp32"
    }
    source = ASTSource(solve_kernels.tree, signature, constants, attributes)
    options = {"num_warps": form.warps_for(nodes), "num_stages": 1}
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert not spills(binary, tmp_path)
    assert binary.metadata.shared <= SHARED_LIMIT
