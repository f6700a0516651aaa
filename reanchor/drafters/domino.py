"""Domino's head: a GRU over the tokens before corrects each slot's scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reanchor.drafters.drafter_config import DominoConfig
from reanchor.drafters.logits_head import SlotInput


class PrefixGru(nn.Module):
    """One step at a time of torch's GRU, without biases."""

    def __init__(self, inputs: int, state: int) -> None:
        super().__init__()
        self.weight_ih_l0 = nn.Parameter(torch.empty(3 * state, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(3 * state, state))

    def forward(self, rows: Tensor, state: Tensor | None) -> Tensor:
        if state is None:
            state = rows.new_zeros(len(rows), self.weight_hh_l0.shape[1])
        return torch.gru_cell(rows, state, self.weight_ih_l0, self.weight_hh_l0)


class DominoHead(nn.Module):
    def __init__(self, config: DominoConfig, hidden_size: int, scored: int) -> None:
        super().__init__()
        self.prefix = config.prefix
        self.prefix_gru = PrefixGru(hidden_size, config.state)
        self.embed_proj = nn.Sequential(
            nn.Linear(hidden_size + config.state, config.width, bias=False),
            nn.SiLU(),
            nn.Linear(config.width, scored, bias=False),
        )

    def correct(self, slot: SlotInput, state: Tensor | None) -> tuple[Tensor, None, Tensor]:
        state = self.prefix_gru(slot.embed(slot.previous), state)
        if slot.index < self.prefix:
            return slot.scores, None, state
        return slot.scores + self.embed_proj(torch.cat([slot.hidden, state], -1)), None, state
