"""The matrix product of target and drafter. It knows no layer.

On x86 CPUs torch gives float32 products of few rows to a BLAS that reads the matrix badly on many of them;
oneDNN, which torch carries for its compiler, computes the same product in full float32 in about half the time. Two to
four rows are the exception: with the matrix on the left, the BLAS reads it once, nearly as fast as for one row. Either
is slower than a packed matrix (`packing.py`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reanchor.packing import ONEDNN, packed

FEW = 4  # rows


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., in] -> [..., out]; weight: [out, in], packed or not"""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    float32 = rows.dtype is weight.dtype is torch.float32 and rows.device.type == "cpu"
    if not (ONEDNN and float32) or torch_linear():
        return F.linear(rows, weight, bias)
    if rows.ndim == 2 and 2 <= len(rows) <= FEW:
        return is_few_rows(rows, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


def torch_linear() -> bool:
    """Training wants torch's product: oneDNN's operator has no derivative and doesn't heed autocast."""
    return torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")


def is_few_rows(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Three rows go as four, which are faster. [N, in] -> [N, out]"""
    count = len(rows)
    if count == 3:
        rows = F.pad(rows, (0, 0, 0, 1))
    out = torch.mm(weight, rows.t()).t()[:count].contiguous()
    return out if bias is None else out.add_(bias)


def apply(module: nn.Module, rows: Tensor) -> Tensor:
    """`module(rows)`; by `linear` where the module is a linear layer and nothing else listens."""
    heard = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return module(rows) if heard or type(module) is not nn.Linear else linear(rows, *matrix_of(module))


def matrix_of(module: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Weight, packed where it is kept so, and bias."""
    kept = None if torch_linear() else packed([module.weight])
    return module.weight if kept is None else kept, module.bias
