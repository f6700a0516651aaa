"""Rotary angles by transformers' own rope code, kept in a table; it knows no block and no cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from reanchor.drafters.drafter_config import DrafterConfig
from reanchor.rotation import signed

LENGTH_DEPENDENT = ("dynamic", "longrope")  # their frequencies change with the longest position seen


def fits(table: Tensor, like: Tensor) -> bool:
    return table.dtype == like.dtype and table.device == like.device


class Rotary(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        try:
            shape = Qwen3Config(
                hidden_size=config.hidden_size,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                head_dim=config.head_dim,
                num_hidden_layers=config.layers,
                max_position_embeddings=config.max_positions,
                rope_parameters=dict(config.rope),
            )
            with torch.device("cpu"):  # the frequencies are in no checkpoint: never on the meta device
                self.embedding = Qwen3RotaryEmbedding(shape)
        except (KeyError, ValueError) as error:
            raise ValueError(f"the drafter's rope keys {dict(config.rope)} are not usable: {error}") from None
        self.table: tuple[Tensor, Tensor] | None = None

    def forward(self, positions: Tensor, longest: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines at `positions` [rows], all below `longest`, in the dtype of `like`."""
        if self.embedding.rope_type in LENGTH_DEPENDENT:
            return self.angles(positions, like)
        if self.table is None or len(self.table[0]) < longest or not fits(self.table[0], like):
            size = max(256, 1 << (longest - 1).bit_length())
            self.table = self.angles(torch.arange(size, device=like.device), like)
        return self.table[0][positions], self.table[1][positions]

    def angles(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        return signed(*self.embedding(like, positions[None]))
