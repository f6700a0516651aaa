"""The benchmark of a round runs at a tiny shape and tells what it promises."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("round_benchmark", ROOT / "benchmarks/round.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("shape, billions", [("qwen3-4b", 4.02), ("qwen3-8b", 8.19)])
def test_the_shapes_are_those_published(benchmark, shape, billions):
    model, drafter = benchmark.random_pair(shape, torch.bfloat16, torch.device("meta"))
    assert round(model.num_parameters() / 1e9, 2) == billions
    assert drafter.config.block_size == 16 and drafter.config.layers == 5


def test_a_floor_reads_everything_once(benchmark):
    limits = {"bytes_per_second": 1e6, "operations_per_second": 1e9}
    wide, tied = torch.empty(1000), torch.empty(500)
    assert benchmark.floor(limits, [(wide, 1), (tied, 1), (tied, 1)], 2000) == pytest.approx(8.0)
    assert benchmark.floor(limits, [(wide, 1e7)], 0) == pytest.approx(2e4)
    model, drafter = benchmark.random_pair("tiny", torch.float32, torch.device("cpu"))
    short, long = (
        SimpleNamespace(model=model, drafter=drafter, prompt=torch.zeros(size)) for size in (1000, 3000)
    )
    rows = 2000 * 2 * 32 * 4  # keys and values of one layer, all heads, single precision
    slow = {**limits, "operations_per_second": 1e18}
    for measure, layers in ((benchmark.pass_floor, 6), (benchmark.draft_floor, 5)):
        assert measure(long, slow, 1) - measure(short, slow, 1) == pytest.approx(layers * rows / 1e6 * 1e3)


def test_only_what_ran_on_the_device_counts(benchmark):
    """A launch's call on the host is no kernel, and two kernels at once are busy once."""

    def event(device: DeviceType, start: float, end: float) -> SimpleNamespace:
        return SimpleNamespace(device_type=device, time_range=SimpleNamespace(start=start, end=end))

    host = [event(DeviceType.CPU, 0, 5000)]
    kernels = [
        event(DeviceType.CUDA, *span) for span in ((4000, 6000), (1000, 2000), (1500, 3000), (4500, 5000))
    ]
    assert benchmark.on_device([*host, *kernels]) == kernels
    assert benchmark.busy_ms([*host, *kernels]) == pytest.approx(2.0 + 2.0)
    assert benchmark.busy_ms(host) == 0


def test_no_repetition_starts_behind_its_time(benchmark):
    bench = benchmark.Bench(None, None, None, clock=lambda: 0.0, repeats=5, accepted=None, until=0.0)
    assert list(bench.repetitions()) == [0]


def test_the_benchmark_of_a_round(tmp_path):
    file = tmp_path / "round.json"
    terms = [
        "--shape",
        "tiny",
        "--dtype",
        "float32",
        "--context",
        "20",
        "--widths",
        "1,16",
        "--blocks",
        "1,3",
    ]
    command = [
        sys.executable,
        "benchmarks/round.py",
        *terms,
        "--new",
        "19",
        "--repeats",
        "2",
        "--threads",
        "1",
    ]
    done = subprocess.run([*command, "--json", str(file)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())
    assert [row["nodes"] for row in figures["passes"]] == [1, 16]
    for row in figures["passes"]:
        assert row["largest_difference"] < 1e-5
        assert row["stacks"]["fused"]["operators"] < row["stacks"]["transformers"]["operators"]
    assert [row["blocks"] for row in figures["drafts"]] == [1, 3]
    assert all(row["floor_ms"] > 0 for row in (*figures["passes"], *figures["drafts"]))
    assert {"commit", "hardware", "transformers"} <= set(figures["setting"])
    methods = {row["method"]: row for row in figures["rounds"]}
    assert set(methods) == {"HF generate", "plain", "dflash", "reanchor"}
    assert methods["plain"]["fused"]["tau"] == methods["plain"]["whole"]["tau"] == 1
    for method in ("dflash", "reanchor"):  # five drafts accepted and a bonus, whichever way
        assert {methods[method][forward]["tau"] for forward in ("transformers", "fused", "whole")} == {6}
        assert 0 < methods[method]["fused"]["outside"] < 1
        assert methods[method]["whole"]["ms_per_round"] > 0 and methods[method]["regions"]["whole_rounds"] > 0
    assert "hf/fused" in done.stdout and "generate/fused" in done.stdout
