"""A block drafter's description, whatever dialect its checkpoint spoke; it knows no file and no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LayerRule:
    """Which keys of its own block's view a drafter layer attends to, by position."""

    causal: bool = False  # only keys at or before the query
    window: int | None = None  # only keys less than this far away; None sees all


@dataclass(frozen=True)
class DrafterConfig:
    dialect: str
    hidden_size: int  # H
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    bias: bool  # on all four attention projections
    vocab_size: int
    block_size: int  # B
    mask_token_id: int
    tap_layers: tuple[int, ...]
    target_layers: int | None  # layers of the target it was trained for, when the checkpoint says so
    rules: tuple[LayerRule, ...]  # [layers]
    rope: Mapping[str, Any]  # transformers' rope_parameters
    max_positions: int
    shifted: bool = False  # slot j predicts position j+1 rather than j
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float | None = None

    @property
    def layers(self) -> int:
        return len(self.rules)

    @property
    def proposals(self) -> int:
        """K: an unshifted anchor slot predicts nothing."""
        return self.block_size if self.shifted else self.block_size - 1
