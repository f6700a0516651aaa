"""From scores of all slots to proposals: at once, or slot by slot when a head reads what came before.

It knows no head by name and no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from reanchor.argmax import argmax
from reanchor.drafters.base import Draw, Race


@dataclass(frozen=True)
class Proposal:
    """What every block proposes, and the distribution each token was taken from."""

    tokens: Tensor  # [blocks, K] ids of the target's vocabulary
    scores: Tensor  # [blocks, K, M] logits
    ids: Tensor | None  # [blocks, K, M] what the scores are of; None: the head's vocabulary in order
    drawn_from: Tensor | None = None  # [blocks, K, M] probabilities; None: the tokens are the best


@dataclass(frozen=True)
class Slot:
    """One slot of every block, and the token before it."""

    index: int
    scores: Tensor  # [blocks, M]
    hidden: Tensor  # [blocks, H]
    previous: Tensor  # [blocks] ids of the target's vocabulary
    embed: Callable[[Tensor], Tensor]


class Vocabulary(Protocol):
    def embed(self, ids: Tensor) -> Tensor: ...

    def target_ids(self, ids: Tensor) -> Tensor:
        """Ids of the head's vocabulary as the target's."""

    def columns(self) -> Tensor | None:
        """The target's ids of all scores, [M]; None: in order."""


class Corrector(Protocol):
    def correct(self, slot: Slot, state: Any) -> tuple[Tensor, Tensor | None, Any]:
        """Scores [blocks, M'] given the token before, their ids (None: as given), the next state."""


def walk(
    corrector: Corrector,
    scores: Tensor,
    hidden: Tensor,
    anchors: Tensor,
    vocabulary: Vocabulary,
    draw: Draw | None = None,
    race: Race | None = None,
    offsets: Sequence[int] = (),
) -> Proposal:
    """All blocks side by side, greedily unless there is a `draw` or a `race`, for which blocks have their offsets.

    scores: [blocks, K, M]; hidden: [blocks, K, H]; anchors: [blocks]
    """
    previous, state = anchors, None
    tokens, corrected, ids, drawn_from = [], [], [], []
    for index in range(scores.shape[1]):
        slot = Slot(index, scores[:, index], hidden[:, index], previous, vocabulary.embed)
        row, candidates, state = corrector.correct(slot, state)
        if race is not None:
            named = vocabulary.columns() if candidates is None else candidates
            row = race(row, [offset + index for offset in offsets], named)
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
    return Proposal(
        torch.stack(tokens, 1),
        torch.stack(corrected, 1),
        torch.stack(found, 1) if found else None,
        torch.stack(drawn_from, 1) if drawn_from else None,
    )
