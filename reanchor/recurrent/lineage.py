"""Who descends from whom: all that recurrent layers ask of a tree, made once a round and shared by the layers.

A recurrent layer has no mask to hide siblings by: what tells branches apart is that each node continues from its
parent. That is two facts: who is an ancestor of whom, for the recurrence, and which rows a node's convolution reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Lineage:
    """Ancestors of N nodes, parents before children."""

    parents: tuple[int, ...]  # [N]; -1 for the root
    sees: Tensor  # [N, N] bool; row v: v's ancestors and v itself
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, parents: Sequence[int], sees: np.ndarray, device: torch.device | str = "cpu") -> Lineage:
        """parents: [N]; sees: [N, N] bool, as `Tree.ancestry` gives it."""
        if sees.shape != (len(parents), len(parents)):
            raise ValueError(f"{len(parents)} parents do not fit ancestors of shape {sees.shape}")
        if any(parent >= node for node, parent in enumerate(parents)):
            raise ValueError("parents must stand before their children")
        return cls(tuple(parents), torch.from_numpy(sees).to(device))

    def __len__(self) -> int:
        return len(self.parents)

    def on(self, device: torch.device) -> Lineage:
        """The same for a layer on another device, moved once a round."""
        if self.sees.device == device:
            return self
        key = ("on", device)
        if key not in self.memo:
            self.memo[key] = replace(self, sees=self.sees.to(device), memo={})
        return self.memo[key]

    def windows(self, width: int) -> Tensor:
        """[width, N]: the rows that a causal convolution of this width reads for each node, oldest first, as places in
        cat(the width - 1 last committed rows, the nodes' rows).

        A node's window goes up its ancestors and from the root on back into the committed rows.
        """
        key = ("windows", width)
        if key not in self.memo:
            before = np.concatenate([np.arange(-1, width - 2), np.array(self.parents) + width - 1])
            rows = [np.arange(len(self)) + width - 1]
            for _ in range(width - 1):
                rows.append(before[rows[-1]])
            self.memo[key] = torch.from_numpy(np.stack(rows[::-1])).to(self.sees.device)
        return self.memo[key]

    def path_sums(self, steps: Tensor) -> Tensor:
        """[H, N]: of values [N, H], the sum over a node and its ancestors, in double where the device has it.

        Decays between nodes are differences of these: in single precision a long way from the root would cost digits.
        """
        exact = steps.dtype if steps.device.type == "mps" else torch.float64
        if ("sees", exact) not in self.memo:
            self.memo["sees", exact] = self.sees.to(exact)
        return (self.memo["sees", exact] @ steps.to(exact)).T

    def decays(self, sums: Tensor, dtype: torch.dtype) -> Tensor:
        """[H, N, N]: exp(row's sum - column's sum) where the row sees the column, 0 elsewhere. sums: [H, N]"""
        apart = sums[:, :, None] - sums[:, None, :]
        return apart.masked_fill_(~self.sees, float("-inf")).exp_().to(dtype)
