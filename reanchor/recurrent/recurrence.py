"""One layer's recurrence over a tree, and what is kept of it until a path is committed.

Every head has a state S [K, V]. A node v continues from its parent's state, the root from the committed one:

    S' = exp(decay_v) S_parent      write_v = value_v, or strength_v (value_v - key_v S') with the delta rule
    S_v = S' + key_v^T write_v      output_v = query_v S_v

The gated delta rule of Gated DeltaNet has a strength, Mamba2 has none. Letters: N nodes, Hk key heads, H value heads, K
key size, V value size; value head h reads key head h // (H / Hk).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reanchor.recurrent.lineage import Lineage


@dataclass(frozen=True)
class RecurrenceProblem:
    """The definition of its answer is `reference.verify`."""

    queries: Tensor  # [N, Hk, K], scaled
    keys: Tensor  # [N, Hk, K], normalised where the layer normalises them
    values: Tensor  # [N, H, V]
    decay: Tensor  # [N, H] logarithms, never above 0
    strength: Tensor | None  # [N, H]; None: values are written as they are
    state: Tensor  # [H, K, V], committed
    lineage: Lineage

    def __post_init__(self) -> None:
        assert len(self.lineage) == len(self.queries) == len(self.values), "one row a node"
        assert self.values.shape[1] % self.keys.shape[1] == 0, "value heads divide into key heads"
        assert self.state.shape == (self.heads, self.keys.shape[2], self.values.shape[2]), "one state a head"

    @property
    def heads(self) -> int:
        return self.values.shape[1]

    @property
    def groups(self) -> int:
        """Value heads that share a key head."""
        return self.heads // self.keys.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """States are never kept, and never computed with, in less than single precision."""
        return torch.promote_types(self.values.dtype, torch.float32)


@dataclass(frozen=True)
class Kept:
    """What a layer keeps of a verified tree instead of a state a node: every node's state follows from it."""

    keys: Tensor  # [Hk, N, K]
    writes: Tensor  # [H, N, V]
    sums: Tensor  # [H, N] decays along the path to a node, its own included
