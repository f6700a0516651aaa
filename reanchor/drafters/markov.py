"""DSpark's heads: a low-rank correction by the token before, and the confidence in each proposal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reanchor.drafters.drafter_config import ConfidenceConfig, MarkovConfig
from reanchor.drafters.logits_head import SlotInput

KINDS = ("vanilla", "gated", "rnn")


class MarkovHead(nn.Module):
    def __init__(self, config: MarkovConfig, hidden_size: int, vocab_size: int, scored: int) -> None:
        super().__init__()
        rank = config.rank
        self.kind = config.kind
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, scored, bias=False)
        if config.kind == "gated":
            self.gate_proj = nn.Linear(hidden_size + rank, rank)
        if config.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def correct(self, slot: SlotInput, state: Tensor | None) -> tuple[Tensor, None, Tensor | None]:
        latent, state = self.latent(self.markov_w1(slot.previous), slot.hidden, state)
        return slot.scores + self.markov_w2(latent), None, state

    def latent(self, before: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """before: [blocks, r] the embedding of the token before -> what w2 reads [blocks, r]"""
        if self.kind == "gated":
            return torch.sigmoid(self.gate_proj(torch.cat([hidden, before], -1))) * before, None
        if self.kind == "rnn":
            state = torch.zeros_like(before) if state is None else state
            joint = self.joint_proj(torch.cat([state, before, hidden], -1))
            gate, candidate, out = joint.chunk(3, dim=-1)
            return torch.tanh(out), torch.lerp(torch.tanh(candidate), state, torch.sigmoid(gate))
        return before, None


class ConfidenceHead(nn.Module):
    def __init__(self, config: ConfidenceConfig, hidden_size: int, rank: int) -> None:
        super().__init__()
        # as bits, which no cast of the module rounds; in no checkpoint, hence never on the meta device
        bits = torch.tensor(config.temperatures, dtype=torch.float32, device="cpu").view(torch.int32)  # [K]
        self.temperatures = nn.Buffer(bits, persistent=False)
        self.proj = nn.Linear(hidden_size + (rank if config.markov else 0), 1)

    def forward(self, hidden: Tensor, before: Tensor | None) -> Tensor:
        """hidden: [blocks, K, H]; before: [blocks, K, r] -> probabilities [blocks, K] in float32"""
        logits = self.proj(hidden if before is None else torch.cat([hidden, before], -1))[..., 0].float()
        return torch.sigmoid(logits / self.temperatures.view(torch.float32))
