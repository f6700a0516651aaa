"""What is meant for captured graphs reads no device value on the host and has no shape that depends on one: the
regions are traced with fake tensors, which have no values to read."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import LlamaConfig

from reanchor.attention import triton
from reanchor.attention.problem import Problem, Visibility
from reanchor.cache import TreeCache
from reanchor.proposal import device_tree
from tests.tiny import SHAPE

BLOCKS, WIDTH, NODES, HEADS, SIZE = 4, 6, 32, 2, 16


def inputs() -> dict[str, torch.Tensor]:
    def integers(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype)

    def rows(count: int, heads: int) -> torch.Tensor:
        return torch.zeros(count, heads, SIZE, dtype=torch.bfloat16)

    return {
        "blocks": integers(BLOCKS, WIDTH),
        "lengths": integers(BLOCKS),
        "max_depth": integers(1),
        "choices": integers(NODES),
        "length": integers(1, dtype=torch.int32),
        "queries": rows(NODES, 2 * HEADS),
        "keys": rows(HEADS, 100).transpose(0, 1).reshape(HEADS, 100, SIZE),
        "buffer": torch.zeros(3, 2, 1, HEADS, 100, SIZE, dtype=torch.bfloat16),
    }


def build(given):
    return device_tree.assemble_on_device(given["blocks"], given["lengths"], given["max_depth"], NODES)


def attend(given, tree):
    sees = Visibility(given["length"], tree.words, tree.depths, tree.depths, NODES)
    problem = Problem(given["queries"], given["keys"], given["keys"], sees, 0.25, window=20, softcap=5.0)
    return triton.attend(problem)


def commit(given, result):
    cache = TreeCache(LlamaConfig(**SHAPE))
    cache.buffers["full_attention"] = given["buffer"]
    cache._device_length = given["length"]
    cache.commit_on_device(result.path, result.count)
    return given["buffer"]


def one_round(given):
    """Everything between the drafter's tokens and the next round's, but for the model's own layers."""
    tree = build(given)
    out = attend(given, tree)
    result = device_tree.accept_on_device(tree, given["choices"])
    nodes, count = device_tree.rejected_on_device(tree, result)
    return out, commit(given, result), result.tokens, result.count, nodes, count


REGIONS = {
    "assemble": build,
    "attend": lambda given: attend(given, build(given)),
    "accept": lambda given: device_tree.accept_on_device(build(given), given["choices"]).path,
    "retain": lambda given: device_tree.rejected_on_device(
        build(given), device_tree.accept_on_device(build(given), given["choices"])
    )[0],
    "commit": lambda given: commit(given, device_tree.accept_on_device(build(given), given["choices"])),
    "round": one_round,
}


def trace(region):
    with FakeTensorMode():
        given = inputs()
        names = list(given)

        def flat(*tensors: torch.Tensor):
            result = region(dict(zip(names, tensors, strict=True)))
            return result.tokens if isinstance(result, device_tree.DeviceTree) else result

        return make_fx(flat)(*given.values())


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_can_be_captured(name):
    graph = trace(REGIONS[name])
    if name in ("attend", "round"):
        assert "reanchor.tree_attention" in graph.code  # one opaque operator


OFFENDERS = {
    "reads the count": lambda given: torch.zeros(int(build(given).count)),
    "branches on a value": lambda given: given["length"] if given["length"] > 0 else given["choices"],
    "shape by value": lambda given: build(given).tokens.nonzero(),
    "selects by mask": lambda given: build(given).tokens[build(given).depths > 0],
    "reads the length": lambda given: given["keys"][:, : given["length"].item()],
}


@pytest.mark.parametrize("name", OFFENDERS)
def test_an_offending_region_is_caught(name):
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        trace(OFFENDERS[name])
