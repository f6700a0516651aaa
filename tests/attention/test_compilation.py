"""Every shipped kernel configuration compiled to sm_90, which needs no GPU: no spills, shared memory
within the limit, warp-group matrix instructions wherever the tile is tall enough for them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from reanchor.attention.triton import FLOAT_TILES, HALF_TILES, SHARED_LIMIT, Tile, padded

triton = pytest.importorskip("triton", reason="triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402 (triton may be missing)
from triton.compiler import ASTSource  # noqa: E402

from reanchor.attention import kernels  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
if not CUOBJDUMP.exists():
    pytest.skip("triton came without cuobjdump", allow_module_level=True)

POINTERS = {
    "Length": "*i32",
    "Words": "*i32",
    "Depths": "*i32",
    "TailDepths": "*i32",
    "Lse": "*fp32",
    "PrefixLse": "*fp32",
}
FLOATS = {"scale", "softcap"}
ALIGNED = {
    "q_n",
    "q_h",
    "k_h",
    "k_s",
    "v_h",
    "v_s",
    "p_n",
    "p_h",
}  # strides of real tensors are multiples of 16
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
TALL = 64  # rows from which Hopper's warp-group instructions apply


def compiled(kernel, constants, dtype, warps, stages, floats=()):
    constants = {**constants, **{name: 1 for name in ("q_d", "k_d", "v_d") if name in kernel.arg_names}}
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in POINTERS:
            signature[name] = POINTERS[name]
        elif name in FLOATS:
            signature[name] = "fp32"
        elif name[0].isupper() and name not in ("N", "T", "HQ", "ROWS"):
            signature[name] = "*fp32" if name in floats else f"*{NAMES[dtype]}"
        else:
            signature[name] = "i32"
    aligned = [name for name, kind in signature.items() if kind.startswith("*") or name in ALIGNED]
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def spills(binary, folder):
    """Loads and stores of local memory in the machine code."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    listing = subprocess.run([CUOBJDUMP, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    assert "EXIT" in listing
    return re.findall(r"\b(?:LDL|STL)\b[^;]*", listing)


def compile_split(tile: Tile, size, dtype, folder, **flags):
    flags = {"G": 4, "PREFIX": True, "WINDOW": False, "SOFTCAP": False, **flags}
    constants = {
        "D": size, "D_PAD": padded(size), "SPLITS": 4, "BLOCK_M": tile.rows, "BLOCK_N": tile.keys,
        "UPCAST": False, "PRECISION": "ieee" if dtype == torch.float32 else "tf32", **flags,
    }  # fmt: skip
    binary = compiled(kernels.split, constants, dtype, tile.warps, tile.stages, floats=("Out",))
    assert not spills(binary, folder)
    assert binary.metadata.shared <= SHARED_LIMIT
    tall = tile.rows >= TALL and dtype != torch.float32
    assert ("wgmma.mma_async" in binary.asm["ptx"]) == tall
    if dtype != torch.float32:
        assert "wgmma" in binary.asm["ptx"] or "mma.sync" in binary.asm["ptx"]


HALF_CASES = [(size, tile) for size, ladder in HALF_TILES.items() for _, tile in ladder]
FLOAT_CASES = [(size, tile) for size, ladder in FLOAT_TILES.items() for _, tile in ladder]
# The first holds all code of the kernel; the others are parts of it, which leave the compiler other choices.
VARIANTS = [
    pytest.param({"WINDOW": True, "SOFTCAP": True}, id="window and cap"),
    pytest.param({}, id="plain", marks=pytest.mark.slow),
    pytest.param({"WINDOW": True}, id="window", marks=pytest.mark.slow),
    pytest.param({"SOFTCAP": True}, id="cap", marks=pytest.mark.slow),
    pytest.param({"PREFIX": False}, id="tail", marks=pytest.mark.slow),
    pytest.param({"PREFIX": False, "SOFTCAP": True}, id="tail and cap", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size, tile", HALF_CASES)
@pytest.mark.parametrize("flags", VARIANTS)
def test_split_in_half_precision(size, tile, dtype, flags, tmp_path):
    compile_split(tile, size, dtype, tmp_path, **flags)


@pytest.mark.parametrize("size, tile", [case for case in HALF_CASES if case[1].rows >= TALL])
def test_plain_attention_in_tall_tiles(size, tile, tmp_path):
    compile_split(tile, size, torch.bfloat16, tmp_path)


def test_one_node_of_one_head(tmp_path):
    """Triton makes constants of arguments that are 1."""
    ones = {"N": 1, "T": 1, "HQ": 1, "G": 1, "w_stride": 1}
    for flags in ({"WINDOW": True, "SOFTCAP": True}, {"PREFIX": False}):
        compile_split(HALF_TILES[64][0][1], 64, torch.bfloat16, tmp_path, **ones, **flags)


@pytest.mark.slow
@pytest.mark.parametrize("size, tile", FLOAT_CASES)
@pytest.mark.parametrize("flags", VARIANTS)
def test_split_in_single_precision(size, tile, flags, tmp_path):
    compile_split(tile, size, torch.float32, tmp_path, **flags)


@pytest.mark.slow
@pytest.mark.parametrize("size", [80, 96, 112, 192])
@pytest.mark.parametrize("flags", VARIANTS)
def test_head_sizes_that_are_no_power_of_two(size, flags, tmp_path):
    for _, tile in HALF_TILES[max(64, padded(size))]:
        compile_split(tile, size, torch.bfloat16, tmp_path, **flags)


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("size", [64, 256])
@pytest.mark.parametrize("splits", [1, 64])
def test_merge(size, splits, prefix, tmp_path):
    constants = {"D": size, "D_PAD": size, "SPLITS": splits, "SPLITS_PAD": splits, "PREFIX": prefix}
    binary = compiled(kernels.merge, constants, torch.bfloat16, 4 if splits > 8 else 1, 3, floats=("Parts",))
    assert not spills(binary, tmp_path)
    assert binary.metadata.shared <= SHARED_LIMIT
