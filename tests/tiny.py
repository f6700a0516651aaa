"""Targets and drafters small enough for any CPU: random weights, and drafters that follow a script."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from reanchor.core import Draft, Retained
from reanchor.drafters.base import Drafter

VOCAB = 64
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "initializer_range": 0.3,
}
MIX = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=7, layer_types=MIX)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=7)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **SHAPE, attn_implementation="eager", tie_word_embeddings=False, sliding_window=7, layer_types=MIX
        )
    ),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SHAPE, tie_word_embeddings=False, sliding_window=7, layer_types=MIX)
    ),
}


def tiny_target(family: str = "qwen3", seed: int = 1, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = FAMILIES[family]().to(dtype).eval()
    model.generation_config.eos_token_id = None
    return model


class ScriptedDrafter(Drafter):
    """Drafts a known continuation with planned mistakes.

    mode: `right` drafts the script; `wrong` never does; `second` is wrong at every third position and right
    after it; `random` draws tokens; `decoy` drafts a wrong baseline after its second token and right shifted
    blocks.
    """

    tap_layers: tuple[int, ...] = (0, 1)

    def __init__(
        self, script: Sequence[int], mode: str = "right", block_size: int = 5, vocab: int = VOCAB
    ) -> None:
        self.script, self.mode, self.block_size, self.vocab = list(script), mode, block_size, vocab
        self.proposals = block_size - 1
        self.generator = torch.Generator().manual_seed(0)

    def new_cache(self) -> list[Tensor]:
        return []

    def commit(self, features: Tensor, cache: list[Tensor]) -> None:
        cache.extend(features)

    def draft(
        self, anchor: int, retained: Retained, shifts: Sequence[int], cache: list[Tensor], top_k: int = 0
    ) -> Draft:
        at, offsets = len(cache), (0, *shifts)
        if self.mode == "decoy":
            truth = self._truth(at, self.block_size + 1)
            wrong = [(token + 1) % self.vocab for token in truth]
            shifted = truth[1 : self.block_size + 1]
            return Draft(
                offsets, [[anchor, truth[1], *wrong[2 : self.block_size]], *(shifted for _ in shifts)]
            )
        anchors = [anchor, *(retained.tokens[d - 1] for d in shifts)]
        return Draft(
            offsets, [[first, *self._tokens(at + d + 1)] for d, first in zip(offsets, anchors, strict=True)]
        )

    def _truth(self, start: int, count: int) -> list[int]:
        return [
            self.script[place] if place < len(self.script) else 0 for place in range(start, start + count)
        ]

    def _tokens(self, start: int) -> list[int]:
        if self.mode == "random":
            return torch.randint(self.vocab, (self.proposals,), generator=self.generator).tolist()
        wrong = {"right": 0, "wrong": 1, "second": 3}[self.mode]
        return [
            (token + 1) % self.vocab if wrong and place % wrong == 0 else token
            for place, token in enumerate(self._truth(start, self.proposals), start)
        ]


def greedy(model: PreTrainedModel, prompt: Tensor, new: int, **kwargs: object) -> list[int]:
    """The target's own greedy continuation, by HF generate."""
    output = model.generate(prompt[None], max_new_tokens=new, do_sample=False, **kwargs)
    return output[0, len(prompt) :].tolist()
