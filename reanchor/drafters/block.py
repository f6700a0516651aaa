"""The block drafter: the `Drafter` of every checkpoint of the family; it knows no file and no tree."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reanchor.argmax import argmax
from reanchor.attention.table import Attention
from reanchor.core import Draft, Retained
from reanchor.drafters.base import Carry, CoupleFunction, Drafter, DrawFunction
from reanchor.drafters.block_mask import BlockLayout, block_mask, layout_blocks
from reanchor.drafters.body import DrafterBody
from reanchor.drafters.context import ContextCache
from reanchor.drafters.domino import DominoHead
from reanchor.drafters.drafter_config import DrafterConfig
from reanchor.drafters.logits_head import LogitsHead, SlotProposals, decode_slots
from reanchor.drafters.markov import ConfidenceHead, MarkovHead
from reanchor.drafters.selector import CandidateSelector
from reanchor.drafters.static_draft import StaticShapeDraft, static_draft_refusal
from reanchor.linear import apply
from reanchor.packing import pack, packable


def topk_log_probs(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and columns of the likeliest. [blocks, K, M] -> two of [blocks, K, count]

    A CPU takes one block after the other, as long as its scores lie in the cache.
    """
    parts = scores.split(1) if scores.device.type == "cpu" else (scores,)
    found = [part.float().log_softmax(-1).topk(min(count, part.shape[-1])) for part in parts]
    return torch.cat([each.values for each in found]), torch.cat([each.indices for each in found])


class BlockDrafter(nn.Module, Drafter):
    """All blocks of a round in one pass over one shared context; parts beyond the body are optional."""

    supports_coupling = True

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config, self.body = config, DrafterBody(config)
        hidden, vocabulary, scored = config.hidden_size, config.vocab_size, config.scored
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(vocabulary, hidden)
        if config.own_head:
            self.lm_head = nn.Linear(hidden, scored, bias=False)
        if config.draft_vocab_size:
            self.d2t = nn.Buffer(torch.zeros(scored, dtype=torch.long))  # target id less draft id
        if config.markov:
            self.markov_head = MarkovHead(config.markov, hidden, vocabulary, scored)
        if config.domino:
            self.domino = DominoHead(config.domino, hidden, scored)
        if config.selector:
            self.candidate_selector = CandidateSelector(config.selector, hidden, vocabulary)
        if config.carryover:
            self.carryover_embedding = nn.Parameter(torch.zeros(self.body.fc.in_features))  # E_carry [Dc]
        if config.confidence:
            rank = config.markov.rank if config.markov else 0
            self.confidence_head = ConfidenceHead(config.confidence, hidden, rank)
        self.tap_layers, self.block_size = config.tap_layers, config.block_size
        self.proposals, self.carryover = config.proposals, config.carryover
        self.groups = config.heads // config.kv_heads
        self.confidence_threshold = 0.0  # proposals from the first less sure on are not made; 0 makes all
        self.borrowed: tuple[Any, Any] = (None, None)
        self.attention = Attention()  # what attends to blocks; replace it to choose

    def borrow(self, embed: nn.Module, head: nn.Module) -> BlockDrafter:
        """Use the target's embedding and head where the checkpoint has none of its own.

        They are called, so that whatever scaling they do is done, and are no parameters of this module.
        """
        self.borrowed = (
            self.embed_tokens if self.config.own_embedding else embed,
            self.lm_head if self.config.own_head else head,
        )
        return self

    @property
    def head_dtype(self) -> torch.dtype:
        """Asked each time: a borrowed head changes with its target."""
        weight = next(self.borrowed[1].parameters(), None)
        return self.dtype if weight is None or not weight.is_floating_point() else weight.dtype

    def packed(self) -> BlockDrafter:
        """Hold a copy of the matrices as the CPU multiplies them fastest; it is passed by once they are trained."""
        matrices = [module.weight for module in self.body.matrices()]
        for weight in [*matrices, *([self.lm_head.weight] if self.config.own_head else [])]:
            if packable(weight):
                pack([weight])
        return self

    def precision(self) -> str:
        return str(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self.body.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.body.norm.weight.device

    @property
    def logits_head(self) -> LogitsHead | None:
        for part in ("markov_head", "domino", "candidate_selector"):
            if part in self._modules:
                return getattr(self, part)
        return None

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
        self,
        anchor: int,
        retained: Retained,
        shifts: Sequence[int],
        cache: ContextCache,
        top_k: int = 0,
        carry: Carry = "none",
        draw: DrawFunction | None = None,
        couple: CoupleFunction | None = None,
    ) -> Draft:
        offsets = (0, *shifts)
        assert all(0 < shift <= len(retained) for shift in shifts), "a shift needs its retained state"
        anchors = [anchor, *(retained.tokens[shift - 1] for shift in shifts)]  # [blocks]
        ids = torch.full((len(anchors), self.block_size), self.config.mask_token_id)
        ids[:, 0] = torch.tensor(anchors)
        ids = ids.to(self.device)
        hidden = self.states(ids, offsets, retained.features, cache, carry)  # [blocks, K, H]
        proposal = self.propose(hidden, ids[:, 0], draw, couple, offsets)
        tokens = torch.cat([ids[:, :1], proposal.tokens], dim=1)  # [blocks, K + 1]
        confidence = self.confidence(hidden, tokens)
        blocks = tokens.tolist() if confidence is None else self.cut(tokens, confidence)
        distribution = None if proposal.drawn_from is None else self.over_vocabulary(proposal)
        if not top_k:
            return Draft(offsets, blocks, distribution=distribution, confidence=confidence)
        log_probs, best = topk_log_probs(proposal.scores, top_k)
        candidates = self.target_ids(best) if proposal.ids is None else proposal.ids.gather(-1, best)
        return Draft(offsets, blocks, candidates, log_probs, distribution, confidence)

    def states(
        self,
        ids: Tensor,
        offsets: tuple[int, ...],
        features: Tensor | None,
        cache: ContextCache,
        carry: Carry = "none",
    ) -> Tensor:
        """Final states of the predicting slots of all blocks. ids: [blocks, B] -> [blocks, K, H]"""
        rows = max(offsets)  # retained rows that any block reads
        embedded = self.embed(ids.view(-1))  # [S, H]
        new = [*cache.pending, features[:rows]] if rows and features is not None else list(cache.pending)
        carried = 0
        if carry != "none" and features is not None:
            carried = len(features)
            new.append(features.to(embedded) + self.carryover_embedding)
        layout = layout_blocks(offsets, rows, self.block_size, carried, carry == "all")
        cache.reserve(len(cache) + len(layout.keys))
        rows_in = [each.to(embedded) for each in new]
        context = self.body.project(torch.cat(rows_in)) if rows_in else embedded[:0]  # [R, H]
        hidden = self.run(embedded, context, layout, cache)
        cache.settle()
        return hidden.view(*ids.shape, -1)[:, self.block_size - self.proposals :]

    def run(self, embedded: Tensor, context: Tensor, layout: BlockLayout, cache: ContextCache) -> Tensor:
        committed, rules = len(cache), self.config.rules
        positions = np.concatenate([np.arange(cache.projected, committed), committed + layout.keys])
        angles = self.body.rotary(
            torch.from_numpy(positions).to(self.device), committed + layout.reach, embedded
        )
        sights = {
            rule: block_mask(layout, rule, committed, self.device, self.attention) for rule in set(rules)
        }
        stores = [partial(cache.extend, layer) for layer in range(len(rules))]
        return self.body(embedded, context, angles, stores, [sights[rule] for rule in rules])

    def embed(self, ids: Tensor) -> Tensor:
        """[rows] -> [rows, H]"""
        module, scale = self.borrowed[0], self.config.embedding_scale
        if scale is None:
            return module(ids).to(self.dtype)
        if module.weight.device.type == "meta":  # offloaded: only the module's own call brings its weight
            return module(ids).to(self.dtype) * (scale / float(getattr(module, "embed_scale", 1.0)))
        return F.embedding(ids, module.weight).to(self.dtype) * scale

    def score(self, hidden: Tensor) -> Tensor:
        """The scores of slots alone. [blocks, K, H] -> [blocks, K, M]"""
        return self.scale_logits(apply(self.borrowed[1], hidden.to(self.head_dtype)))

    def scale_logits(self, logits: Tensor) -> Tensor:
        """What the config does to the head's logits."""
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        if self.config.softcap:
            logits = torch.tanh(logits / self.config.softcap) * self.config.softcap
        return logits

    def propose(
        self,
        hidden: Tensor,
        anchors: Tensor,
        draw: DrawFunction | None = None,
        couple: CoupleFunction | None = None,
        offsets: Sequence[int] = (),
    ) -> SlotProposals:
        """hidden: [blocks, K, H]; anchors, offsets: [blocks]"""
        scores, logits_head = self.score(hidden), self.logits_head
        if logits_head is not None:
            return decode_slots(logits_head, scores, hidden, anchors, self, draw, couple, offsets)
        if couple is not None:
            places = [offset + index for offset in offsets for index in range(scores.shape[1])]
            scores = couple(scores.flatten(0, 1), places, self.columns()).view_as(scores)
        if draw is None:
            return SlotProposals(self.target_ids(argmax(scores)), scores, None)
        column, probabilities = draw(scores.flatten(0, 1))
        tokens = self.target_ids(column.view(scores.shape[:2]))
        return SlotProposals(tokens, scores, None, probabilities.view_as(scores))

    def over_vocabulary(self, proposal: SlotProposals) -> Tensor:
        """The baseline's distributions over the target's tokens. -> [K, V]"""
        assert proposal.drawn_from is not None
        found = proposal.drawn_from[0]  # [K, M]
        ids = self.columns() if proposal.ids is None else proposal.ids[0]
        if ids is None:
            return found
        return found.new_zeros(len(found), self.config.vocab_size).scatter_(-1, ids.expand_as(found), found)

    def columns(self) -> Tensor | None:
        """The target's ids of the head's scores, [M]; None: in order."""
        size = self.config.draft_vocab_size
        return self.target_ids(torch.arange(size, device=self.device)) if size else None

    def target_ids(self, ids: Tensor) -> Tensor:
        """Ids of the head's vocabulary as the target's."""
        return ids + self.d2t[ids] if self.config.draft_vocab_size else ids

    def confidence(self, hidden: Tensor, tokens: Tensor) -> Tensor | None:
        """P(accepted | all before accepted) of every proposal [blocks, K]; None without such a head."""
        if self.config.confidence is None:
            return None
        before = self.markov_head.markov_w1(tokens[:, :-1]) if self.config.confidence.markov else None
        return self.confidence_head(hidden, before)

    def cut(self, tokens: Tensor, confidence: Tensor) -> list[list[int]]:
        """Each block up to its first proposal below the threshold."""
        rows = torch.cat([self.sure(confidence), tokens], dim=1).tolist()
        return [row[1 : 2 + row[0]] for row in rows]

    def sure(self, confidence: Tensor) -> Tensor:
        """Proposals of each block before the first below the threshold. [blocks, K] -> [blocks, 1]"""
        return (confidence >= self.confidence_threshold).cumprod(1).sum(1, keepdim=True)

    def fixed(self, context: ContextCache, blocks: int, width: int) -> StaticShapeDraft:
        """The draft of this many blocks with fixed shapes, where `static_draft_refusal` gives no reason against it."""
        return StaticShapeDraft(self, context, blocks, width)

    def static_draft_refusal(self) -> str | None:
        return static_draft_refusal(self)
