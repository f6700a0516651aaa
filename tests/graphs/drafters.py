"""Drafters with drafts of fixed shapes: block drafters of no size, and a script that accepts much."""

from __future__ import annotations

import torch
from torch import Tensor

from reanchor.core import Draft
from reanchor.drafters.base import Drafter
from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.context import ContextCache
from reanchor.drafters.drafter_config import (
    ConfidenceConfig,
    ConvolutionConfig,
    DominoConfig,
    DrafterConfig,
    LayerRule,
    MarkovConfig,
    SelectorConfig,
)

HIDDEN = 32
TEMPERATURES = (0.5, 1.0, 2.0, 3.0, 1.5)


def confident(proposals: int, markov: bool = True) -> ConfidenceConfig:
    return ConfidenceConfig(markov, TEMPERATURES[:proposals])


KINDS = {  # what published drafters have beyond a body; a threshold beside what has confidence
    "vanilla": {"markov": MarkovConfig(6, "vanilla"), "confidence": confident(4, markov=False)},
    "gated, shifted": {"markov": MarkovConfig(6, "gated"), "confidence": confident(5), "shifted": True},
    "rnn": {"markov": MarkovConfig(6, "rnn"), "confidence": confident(4)},
    "domino": {"domino": DominoConfig(width=10, state=12, prefix=1)},
    "domino, shifted": {"domino": DominoConfig(width=10, state=12, prefix=0), "shifted": True},
    "selector, convolved": {
        "selector": SelectorConfig(6, top_k=3),
        "convolution": ConvolutionConfig(3, group=8),
    },
    "gemma, keys are values": {"gemma": True, "shared_kv": True, "softcap": 2.0, "embedding_scale": 5.6},
    "own ends, fewer tokens": {"own_embedding": True, "own_head": True, "draft_vocab_size": 4},
}


def block_drafter(model, block_size: int = 5, seed: int = 3, **more) -> BlockDrafter:
    """Random, on two layers of the target, of which one slides."""
    torch.manual_seed(seed)
    config = DrafterConfig(
        **{
            "dialect": "z-lab",
            "family": "dflash",
            "hidden_size": HIDDEN,
            "intermediate_size": 48,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 8,
            "eps": 1e-6,
            "bias": False,
            "activation": "silu",
            "vocab_size": model.config.vocab_size,
            "block_size": block_size,
            "mask_token_id": model.config.vocab_size - 1,
            "tap_layers": (0, 2),
            "target_layers": 3,
            "target_hidden_size": HIDDEN,
            "rules": (LayerRule(), LayerRule(causal=True, window=6)),
            "rope": {"rope_type": "default", "rope_theta": 1e4},
            "max_positions": 512,
            **more,
        }
    )
    drafter = BlockDrafter(config)
    if config.confidence:
        drafter.confidence_threshold = 0.4
    if config.draft_vocab_size:
        drafter.d2t += 1  # all but the first token
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter.data, mean=0.5 if parameter.ndim == 1 else 0.0, std=0.3)
    drafter = drafter.to(model.device, model.dtype).requires_grad_(False).eval()
    return drafter.borrow(model.get_input_embeddings(), model.get_output_embeddings())


class ScriptedBlocks(Drafter):
    """Drafts a known continuation, wrong in the baseline from `right` proposals on, right in shifted blocks but for
    every `miss`-th position.
    """

    tap_layers = (0, 1)

    def __init__(
        self, script: list[int], vocabulary: int, right: int = 2, miss: int = 7, block_size: int = 5
    ):
        self.script = torch.tensor([*script, *[0] * 64])
        self.vocabulary, self.right, self.miss = vocabulary, right, miss
        self.block_size, self.proposals = block_size, block_size - 1

    def static_draft_refusal(self):
        return None

    def new_cache(self) -> ContextCache:
        return ContextCache([(1, 1)], torch.float32, torch.device("cpu"))

    def commit(self, features: Tensor, cache: ContextCache) -> None:
        cache.queue(features)

    def blocks(self, anchors: Tensor, committed: Tensor | int) -> Tensor:
        """[blocks, K + 1]"""
        row, step = torch.arange(len(anchors)), torch.arange(self.block_size)
        places = committed + row[:, None] + step
        tokens = self.script[places]
        baseline = (row[:, None] == 0) & (step > self.right)
        tokens = torch.where(baseline | (places % self.miss == 0), (tokens + 1) % self.vocabulary, tokens)
        return torch.where(step == 0, anchors[:, None], tokens)

    def draft(self, anchor, retained, shifts, cache, top_k=0) -> Draft:
        anchors = torch.tensor([anchor, *(retained.tokens[d - 1] for d in shifts)])
        blocks = self.blocks(anchors, len(cache))
        cache.reserve(len(cache) + 64)
        cache.settle()
        return Draft((0, *shifts), blocks.tolist())

    def fixed(self, context, blocks, width):
        return FixedScript(self, context, blocks)


class FixedScript:
    def __init__(self, drafter, context, blocks):
        self.drafter, self.count, self.projected = drafter, blocks, context.device_length()

    def run(self, fed):
        self.projected += fed.waiting
        anchors = torch.cat([fed.anchor, fed.tokens[: self.count - 1]])
        blocks = self.drafter.blocks(anchors, self.projected)
        return blocks, torch.full_like(anchors, self.drafter.block_size)
