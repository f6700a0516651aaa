"""Objective of a drafted block against the recorded continuation: DFlash's loss and DSpark's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.markov import MarkovHead
from reanchor.training.anchors import slot_weights

CROSS_ENTROPY, DISTANCE, CONFIDENCE = 0.1, 0.9, 1.0  # DSpark's shares


class LossVocabulary:
    """The tokens a softmax runs over: all, or those that occur in the responses."""

    def __init__(self, size: int, seen: Tensor | None) -> None:
        self.seen = seen  # [V'] token ids in order
        self.place = None
        if seen is not None:
            self.place = torch.full((size,), -1, device=seen.device)
            self.place[seen] = torch.arange(len(seen), device=seen.device)
        self.frozen: Tensor | None = None

    def rows(self, weight: Tensor) -> Tensor:
        return weight if self.seen is None else weight[self.seen]

    def head_rows(self, weight: Tensor) -> Tensor:
        """Rows of the output head, which never changes: taken once. [V', H]"""
        if self.frozen is None:
            self.frozen = self.rows(weight)
        return self.frozen

    def columns(self, logits: Tensor) -> Tensor:
        return logits if self.seen is None else logits[..., self.seen]

    def labels(self, tokens: Tensor) -> Tensor:
        return tokens if self.place is None else self.place[tokens]


def refuse_untrainable(drafter: BlockDrafter) -> None:
    config = drafter.config
    if config.domino or config.selector or config.draft_vocab_size:
        raise ValueError(
            f"a {config.family} drafter cannot be trained here: only DFlash and Markov bodies over the target's "
            "whole vocabulary"
        )


def scores(drafter: BlockDrafter, hidden: Tensor, previous: Tensor, vocabulary: LossVocabulary) -> Tensor:
    """Logits of every slot, the tokens before it being the recorded ones.

    hidden: [A, K, H]; previous: [A, K] -> [A, K, V']
    """
    head = drafter.borrowed[1]
    if vocabulary.seen is None:
        logits = drafter.score(hidden)
    else:
        rows = vocabulary.head_rows(head.weight)
        bias = None if head.bias is None else head.bias[vocabulary.seen]
        logits = drafter.scale_logits(F.linear(hidden.to(rows.dtype), rows, bias))
    logits = logits.float()
    if drafter.config.markov is None:
        return logits
    return logits + correction(drafter.markov_head, hidden, previous, vocabulary).float()


def correction(head: MarkovHead, hidden: Tensor, previous: Tensor, vocabulary: LossVocabulary) -> Tensor:
    before, state, latents = head.markov_w1(previous), None, []
    for slot in range(hidden.shape[1]):
        latent, state = head.latent(before[:, slot], hidden[:, slot], state)
        latents.append(latent)
    return F.linear(torch.stack(latents, 1), vocabulary.rows(head.markov_w2.weight))


@dataclass(frozen=True)
class BlockLoss:
    """Of one response's blocks: the loss, and how far each block's greedy proposals go, given the record."""

    loss: Tensor  # []
    hits: Tensor  # [A, K] bool


def block_loss(
    drafter: BlockDrafter,
    hidden: Tensor,
    ids: Tensor,
    anchors: Tensor,
    vocabulary: LossVocabulary,
    gamma: float,
    teacher: Tensor | None = None,
) -> BlockLoss:
    """hidden: [A, K, H]; ids: [L]; teacher: [A, K, V] the target's logits for the same slots (Markov)."""
    places = anchors[:, None] + torch.arange(drafter.proposals, device=ids.device)  # [A, K]
    previous, labels = ids[places], vocabulary.labels(ids[places + 1])
    logits = scores(drafter, hidden, previous, vocabulary)  # [A, K, V']
    weights = logits.new_tensor(slot_weights(drafter.proposals, gamma))
    weights = weights / weights.sum() / len(anchors)
    entropy = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    loss = (entropy * weights).sum()
    if drafter.config.markov is not None and teacher is not None:
        loss = CROSS_ENTROPY * loss + dspark(drafter, logits, hidden, previous, weights, vocabulary, teacher)
    return BlockLoss(loss, logits.detach().argmax(-1) == labels)


def dspark(
    drafter: BlockDrafter,
    logits: Tensor,
    hidden: Tensor,
    previous: Tensor,
    weights: Tensor,
    vocabulary: LossVocabulary,
    teacher: Tensor,
) -> Tensor:
    """Total variation to the target's distribution, and the confidence head's error about it."""
    truth = vocabulary.columns(teacher).float().softmax(-1)
    distance = (logits.softmax(-1) - truth).abs().sum(-1) / 2  # [A, K]
    loss = DISTANCE * (distance * weights).sum()
    if drafter.config.confidence is None:
        return loss
    before = drafter.markov_head.markov_w1(previous) if drafter.config.confidence.markov else None
    believed = drafter.confidence_head(hidden, before).clamp(1e-6, 1 - 1e-6)
    truth = (1 - distance).detach()
    error = -(truth * believed.log() + (1 - truth) * (1 - believed).log())
    return loss + CONFIDENCE * (error * weights).sum()


def acceptance(hits: Tensor) -> Tensor:
    """Tokens a round that commits what was drafted right, bonus included. hits: [A, K] -> [A]"""
    return 1 + hits.long().cumprod(1).sum(1)
