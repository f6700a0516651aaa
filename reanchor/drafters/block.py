"""The block drafter: the `Drafter` of every checkpoint of the family; it knows no file and no tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from reanchor.core import Draft, Retained
from reanchor.drafters.body import Body
from reanchor.drafters.config import DrafterConfig
from reanchor.drafters.context import ContextCache
from reanchor.drafters.visibility import Layout, additive_mask, first_key, layout_blocks


class BlockDrafter(nn.Module):
    """All blocks of a round in one pass over one shared context.

    `embed` and `head` are the target's modules when the checkpoint has none of its own. They are called,
    never read, so that whatever scaling they do is done; and they are no parameters of this module.
    """

    def __init__(
        self,
        config: DrafterConfig,
        body: Body,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        head_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config, self.body = config, body
        self.borrowed = (embed, head)  # a tuple, so that torch does not register them as ours
        self.head_dtype = head_dtype  # what the head takes; None: the body's
        self.tap_layers, self.block_size, self.proposals = (
            config.tap_layers,
            config.block_size,
            config.proposals,
        )
        self.groups = config.heads // config.kv_heads

    @property
    def dtype(self) -> torch.dtype:
        return self.body.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.body.norm.weight.device

    def new_cache(self) -> ContextCache:
        shape = (self.config.kv_heads, self.config.head_dim)
        return ContextCache([shape] * self.config.layers, self.dtype, self.device)

    def commit(self, features: Tensor, cache: ContextCache) -> None:
        width = self.body.fc.in_features
        if features.ndim != 2 or features.shape[1] != width:
            raise ValueError(
                f"features have shape {tuple(features.shape)}, not [positions, {width}]: "
                f"concatenate the outputs of target layers {list(self.tap_layers)}"
            )
        cache.queue(features)

    @torch.inference_mode()
    def draft(
        self, anchor: int, retained: Retained, shifts: Sequence[int], cache: ContextCache, top_k: int = 0
    ) -> Draft:
        offsets = (0, *shifts)
        assert all(0 < shift <= len(retained) for shift in shifts), "a shift needs its retained state"
        anchors = [anchor, *(retained.tokens[shift - 1] for shift in shifts)]  # [blocks]
        ids = torch.full((len(anchors), self.block_size), self.config.mask_token_id)
        ids[:, 0] = torch.tensor(anchors)
        ids = ids.to(self.device)
        hidden = self.states(ids, offsets, retained.features, cache)  # [blocks, K, H]
        logits = self.score(hidden)  # [blocks, K, V]
        tokens = torch.cat([ids[:, :1], logits.argmax(-1)], dim=1)  # [blocks, K + 1]
        if not top_k:
            return Draft(offsets, tokens.tolist())
        log_probs, candidates = logits.float().log_softmax(-1).topk(top_k)
        return Draft(offsets, tokens.tolist(), candidates, log_probs)

    def states(
        self, ids: Tensor, offsets: tuple[int, ...], features: Tensor | None, cache: ContextCache
    ) -> Tensor:
        """Final states of the predicting slots of all blocks. ids: [blocks, B] -> [blocks, K, H]"""
        rows = max(offsets)  # retained rows that any block reads
        layout = layout_blocks(offsets, rows, self.block_size)
        committed = len(cache)
        cache.reserve(committed + len(layout.keys))
        new = [*cache.pending, features[:rows]] if rows and features is not None else cache.pending
        embedded = self.borrowed[0](ids.view(-1)).to(self.dtype) * self.config.embedding_scale  # [S, H]
        context = self.body.project(torch.cat(new).to(embedded)) if new else embedded[:0]  # [R, H]
        hidden = self.run(embedded, context, layout, cache)
        cache.settle()
        return hidden.view(*ids.shape, -1)[:, self.block_size - self.proposals :]

    def run(self, embedded: Tensor, context: Tensor, layout: Layout, cache: ContextCache) -> Tensor:
        committed, rules = len(cache), self.config.rules
        positions = np.concatenate([np.arange(cache.projected, committed), committed + layout.keys])
        rotary = self.body.rotary(
            torch.from_numpy(positions).to(self.device), committed + layout.reach, embedded
        )
        masks = {rule: additive_mask(layout, rule, committed, self.groups, embedded) for rule in set(rules)}
        first = {rule: first_key(rule, committed) for rule in set(rules)}

        def store(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            return cache.extend(layer, first[rules[layer]], keys, values)

        return self.body(embedded, context, rotary, store, [masks[rule] for rule in rules])

    def score(self, hidden: Tensor) -> Tensor:
        """The drafter's logits, before any head of its own. [blocks, K, H] -> [blocks, K, V]"""
        logits = self.borrowed[1](hidden.to(self.head_dtype or hidden.dtype))
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        if self.config.softcap:
            logits = torch.tanh(logits / self.config.softcap) * self.config.softcap
        return logits
