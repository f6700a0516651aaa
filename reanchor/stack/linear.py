"""The matrix product of the stack. It knows no layer.

On x86 CPUs torch gives float32 products of few rows to a BLAS that reads the matrix badly on many of them;
oneDNN, which torch carries for its compiler, computes the same product in full float32 in about half the time.
"""

from __future__ import annotations

import platform

import torch
import torch.nn.functional as F
from torch import Tensor

from reanchor.stack.weights import Affine

X86 = platform.machine().lower() in ("x86_64", "amd64")
ONEDNN = X86 and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(rows: Tensor, affine: Affine) -> Tensor:
    """[N, in] -> [N, out]"""
    if rows.dtype is torch.float32 and rows.device.type == "cpu" and ONEDNN:
        return torch.ops.mkldnn._linear_pointwise(rows, affine.weight, affine.bias, "none", [], "")
    return F.linear(rows, affine.weight, affine.bias)
