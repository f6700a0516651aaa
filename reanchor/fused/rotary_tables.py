"""Rotary tables of a model, made by its own module once for all positions in use."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from reanchor.fused.architecture import Unsupported
from reanchor.rotation import signed

Tables = dict[str, tuple[Tensor, Tensor]]  # by kind of layer: cosine, signed sine


class RotaryTables:
    """Cosine and signed sine [positions, 1, D] for every kind of layer."""

    def __init__(self, module: Any, sizes: dict[str, int], like: Tensor) -> None:
        self.module, self.sizes, self.like = module, sizes, like  # sizes: head size by kind
        self.by_kind = "layer_type" in inspect.signature(module.forward).parameters
        self.tables: Tables = {}
        self.positions = 0
        self.reserve(1)
        for kind, size in sizes.items():
            if self.tables[kind][0].shape[-1] != size:
                raise Unsupported(
                    f"its rotary embedding turns {self.tables[kind][0].shape[-1]} of {size} dimensions"
                )

    def reserve(self, positions: int) -> None:
        if positions <= self.positions:
            return
        self.positions = positions
        places = torch.arange(positions, device=self.like.device)[None]
        made: Tables = {}
        for kind in self.sizes:
            extra = {"layer_type": kind} if self.by_kind else {}
            shared = None if self.by_kind else next(iter(made.values()), None)
            made[kind] = shared or signed(*self.module(self.like, places, **extra))
        self.tables = made

    def at(self, positions: Tensor, tables: Tables | None = None) -> Tables:
        """[N, 1, D] each, by kind. positions: [N]; tables: an earlier state of these"""
        tables = tables or self.tables
        taken: dict[int, tuple[Tensor, Tensor]] = {}
        for table in tables.values():
            if id(table) not in taken:
                cosine, sine = (each.index_select(0, positions) for each in table)
                taken[id(table)] = cosine, sine
        return {kind: taken[id(table)] for kind, table in tables.items()}
