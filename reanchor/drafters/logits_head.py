"""Logits head, from scores of all slots to proposals: at once, or slot by slot when a head reads what came before.

It knows no head by name and no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from reanchor.argmax import argmax
from reanchor.drafters.base import CoupleFunction, DrawFunction


@dataclass(frozen=True)
class SlotProposals:
    """What every block proposes, and the distribution each token was taken from."""

    tokens: Tensor  # [blocks, K] ids of the target's vocabulary
    scores: Tensor  # [blocks, K, M] logits
    ids: Tensor | None  # [blocks, K, M] what the scores are of; None: the head's vocabulary in order
    drawn_from: Tensor | None = None  # [blocks, K, M] probabilities; None: the tokens are the best


@dataclass(frozen=True)
class SlotInput:
    """One slot of every block, and the token before it."""

    index: int
    scores: Tensor  # [blocks, M]
    hidden: Tensor  # [blocks, H]
    previous: Tensor  # [blocks] ids of the target's vocabulary
    embed: Callable[[Tensor], Tensor]


class DraftVocabulary(Protocol):
    def embed(self, ids: Tensor) -> Tensor: ...

    def target_ids(self, ids: Tensor) -> Tensor:
        """Ids of the head's vocabulary as the target's."""

    def columns(self) -> Tensor | None:
        """The target's ids of all scores, [M]; None: in order."""


class LogitsHead(Protocol):
    def correct(self, slot: SlotInput, state: Any) -> tuple[Tensor, Tensor | None, Any]:
        """Scores [blocks, M'] given the token before, their ids (None: as given), the next state."""


def decode_slots(
    logits_head: LogitsHead,
    scores: Tensor,
    hidden: Tensor,
    anchors: Tensor,
    vocabulary: DraftVocabulary,
    draw: DrawFunction | None = None,
    couple: CoupleFunction | None = None,
    offsets: Sequence[int] = (),
) -> SlotProposals:
    """All blocks side by side, greedily unless there is a `draw` or a `couple`, for which blocks have their offsets.

    scores: [blocks, K, M]; hidden: [blocks, K, H]; anchors: [blocks]
    """
    previous, state = anchors, None
    tokens, corrected, ids, drawn_from = [], [], [], []
    for index in range(scores.shape[1]):
        slot = SlotInput(index, scores[:, index], hidden[:, index], previous, vocabulary.embed)
        row, candidates, state = logits_head.correct(slot, state)
        if couple is not None:
            named = vocabulary.columns() if candidates is None else candidates
            row = couple(row, [offset + index for offset in offsets], named)
        if draw is None:
            best = argmax(row)[:, None]  # [blocks, 1]
        else:
            best, probabilities = draw(row)
            drawn_from.append(probabilities)
        previous = (vocabulary.target_ids(best) if candidates is None else candidates.gather(-1, best))[:, 0]
        tokens.append(previous)
        corrected.append(row)
        ids.append(candidates)
    found = [each for each in ids if each is not None]
    return SlotProposals(
        torch.stack(tokens, 1),
        torch.stack(corrected, 1),
        torch.stack(found, 1) if found else None,
        torch.stack(drawn_from, 1) if drawn_from else None,
    )
