"""Loss of one response: the baseline's draft from its anchors, or Carryover's second draft."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reanchor.drafters.block import BlockDrafter
from reanchor.training.anchors import sample_anchors
from reanchor.training.feature_store import FeatureStore, grow
from reanchor.training.objective import BlockLoss, LossVocabulary, block_loss
from reanchor.training.packed import CarryoverRows, block_states
from reanchor.training.responses import Response
from reanchor.training.train_config import TrainConfig
from reanchor.training.transitions import advance


@dataclass(frozen=True)
class TrainingBatch:
    """Everything a differentiable draft reads, none of it with a gradient."""

    ids: Tensor  # [L]
    features: Tensor  # [L, Dc]
    anchors: Tensor  # [A]
    carried: CarryoverRows | None = None
    logits: Tensor | None = None  # [A, K, V] the target's, for the terms that need them
    accepted: tuple[int, ...] = ()  # by the first draft, of every sampled anchor
    dropped: int = 0
    weight: float = 1.0  # 0: nothing to learn, but every process of a distributed run must take part


class DrafterLoss(nn.Module):
    """The drafter as a module whose forward is its loss, so that a distributed wrapper sees every gradient."""

    def __init__(self, drafter: BlockDrafter, vocabulary: LossVocabulary, gamma: float) -> None:
        super().__init__()
        self.drafter, self.vocabulary, self.gamma = drafter, vocabulary, gamma

    def forward(self, material: TrainingBatch) -> tuple[Tensor, Tensor]:
        """-> loss [], hits [A, K]"""
        result = self.judge(material)
        loss = result.loss * material.weight
        if self.drafter.config.carryover:  # a step without carried rows must still give it a gradient
            loss = loss + 0 * self.drafter.carryover_embedding.sum()
        return loss, result.hits

    def judge(self, material: TrainingBatch) -> BlockLoss:
        hidden = block_states(
            self.drafter, material.ids, material.features, material.anchors, material.carried
        )
        return block_loss(
            self.drafter,
            hidden,
            material.ids,
            material.anchors,
            self.vocabulary,
            self.gamma,
            material.logits,
        )


class BatchBuilder:
    """Prepares material from responses; `carryover` says which of the two trainings it is for."""

    def __init__(
        self, drafter: BlockDrafter, teacher: FeatureStore, config: TrainConfig, carryover: bool
    ) -> None:
        self.drafter, self.teacher, self.config, self.carryover = drafter, teacher, config, carryover

    def prepare(self, response: Response, rng: random.Random) -> TrainingBatch:
        """Of weight 0 when no shifted block fits into the response any more."""
        anchors = sample_anchors(response, self.drafter.proposals, self.config.anchors, rng)
        features = self.teacher.features(response)
        ids = torch.tensor(response.ids, device=features.device)
        if not self.carryover:
            places = torch.tensor(anchors, device=ids.device)
            return TrainingBatch(ids, features, places, logits=self.target_logits(response, places))
        moved = advance(self.drafter, self.teacher, response, features, anchors)
        if not len(moved.anchors):
            one = torch.tensor(anchors[:1], device=ids.device)
            logits = self.target_logits(response, one, moved.logits)
            return TrainingBatch(ids, features, one, None, logits, tuple(moved.accepted), moved.dropped, 0.0)
        logits = self.target_logits(response, moved.anchors, moved.logits)
        return TrainingBatch(
            ids, features, moved.anchors, moved.carried, logits, tuple(moved.accepted), moved.dropped
        )

    def target_logits(
        self, response: Response, anchors: Tensor, known: Tensor | None = None
    ) -> Tensor | None:
        """[A, K, V] after each slot's recorded prefix; None for a drafter whose loss has no use for them."""
        if self.drafter.config.markov is None:
            return None
        if known is None:
            known = self.teacher.judge(response, grow(response, [], []).tree).logits
        places = anchors[:, None] + torch.arange(self.drafter.proposals, device=anchors.device)
        return known[places - len(response.prompt_ids)]
