"""DFlash 2's selector: among each slot's best candidates, the one that follows the token before."""

from __future__ import annotations

from torch import Tensor, nn

from reanchor.drafters.drafter_config import SelectorConfig
from reanchor.drafters.logits_head import SlotInput


class CandidateSelector(nn.Module):
    def __init__(self, config: SelectorConfig, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.predecessor_codebook = nn.Embedding(vocab_size, config.rank)
        self.successor_codebook = nn.Embedding(vocab_size, config.rank)
        self.hidden_projection = nn.Linear(hidden_size, config.rank, bias=False)

    def correct(self, slot: SlotInput, state: None) -> tuple[Tensor, Tensor, None]:
        unary, candidates = slot.scores.topk(self.top_k)  # [blocks, k]
        query = self.predecessor_codebook(slot.previous) * self.hidden_projection(slot.hidden)
        pairs = (self.successor_codebook(candidates) @ query[..., None])[..., 0]
        return unary + pairs, candidates, None
