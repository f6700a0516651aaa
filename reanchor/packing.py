"""Matrices in the layout that oneDNN multiplies fastest by: few rows in half to three quarters of the time. It knows no
model.

A packed matrix is a copy: the target gives back the pages of its originals, a drafter, which is small, keeps both.
Copies are shared: they are found by the parameters they were made of, and valid as long as these are what they were.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

X86 = platform.machine().lower() in ("x86_64", "amd64")
ONEDNN = X86 and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
ROWS = 16  # that the layout is chosen for; it is as good for fewer and, measured up to 512, for more


@dataclass(frozen=True)
class Packed:
    matrix: Tensor  # [out, in], opaque
    made_of: tuple[tuple[int, int], ...]  # address and version of each parameter, in the order of their rows


_KEPT: WeakIdKeyDictionary = WeakIdKeyDictionary()  # first parameter -> Packed


def packable(weight: Tensor) -> bool:
    if not ONEDNN or weight.device.type != "cpu" or weight.ndim != 2 or not weight.is_contiguous():
        return False
    return weight.dtype is torch.float32 or (
        weight.dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


@torch.no_grad()
def pack(parameters: Sequence[Tensor]) -> Tensor:
    """Their rows as one packed matrix, from now on to be had from `packed`."""
    rows = parameters[0] if len(parameters) == 1 else torch.cat([each.detach() for each in parameters])
    matrix = torch.ops.mkldnn._reorder_linear_weight(rows.detach().contiguous(), ROWS)
    _KEPT[parameters[0]] = Packed(matrix, state_of(parameters))
    return matrix


def packed(parameters: Sequence[Tensor]) -> Tensor | None:
    """What was packed of them; nothing where they were changed since, as far as their versions tell."""
    kept = _KEPT.get(parameters[0])
    if kept is None:
        return None
    if kept.made_of != state_of(parameters):
        forget(parameters)
        return None
    return kept.matrix


def forget(parameters: Sequence[Tensor]) -> None:
    _KEPT.pop(parameters[0], None)


def state_of(parameters: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    return tuple((each.data_ptr(), version_of(each)) for each in parameters)


def version_of(tensor: Tensor) -> int:
    """Rises with every change in place; a tensor made under inference mode does not count its own."""
    return 0 if tensor.is_inference() else tensor._version
