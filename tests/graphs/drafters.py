"""Drafters with drafts of fixed shapes: block drafters of no size, and a script that accepts much."""

from __future__ import annotations

import torch
from torch import Tensor

from reanchor.core import Draft
from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.config import DrafterConfig, LayerRule
from reanchor.drafters.context import ContextCache

HIDDEN = 32


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
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter.data, mean=0.5 if parameter.ndim == 1 else 0.0, std=0.3)
    drafter = drafter.to(model.dtype).requires_grad_(False).eval()
    return drafter.borrow(model.get_input_embeddings(), model.get_output_embeddings())


class ScriptedBlocks:
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

    def fixed_refusal(self):
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
