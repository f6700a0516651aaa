"""Runs the tests of the kernels under Triton's interpreter: a process of its own, so that no other test
meets it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")


@pytest.mark.skipif(torch.cuda.is_available(), reason="test_kernels.py runs on the device itself")
@pytest.mark.parametrize(
    "chosen, least", [("not slow", 60), pytest.param("slow", 10, marks=pytest.mark.slow)]
)
def test_kernels_under_the_interpreter(chosen, least):
    folder = Path(__file__).parent
    tests = [str(folder / "test_kernels.py"), str(folder / "test_engine.py"), "-k", "kernels"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, *tests],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=folder.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= least, done.stdout[-2000:]
