"""Decodes watched from outside: at which anchors a drafter drafted, what it carried over, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reanchor.config import DecodeConfig, SamplingConfig
from reanchor.core import Draft, Retained
from reanchor.decoder import SpeculativeDecoder
from reanchor.drafters.base import WrappedDrafter
from reanchor.drafters.block import BlockDrafter
from reanchor.training.packed import CarryoverRows, block_states

CARRIED = ("nothing", "states", "states with embedding")


@dataclass(frozen=True)
class ObservedRound:
    position: int  # of the anchor
    block: tuple[int, ...]  # the anchor and the proposals
    retained: Retained


@dataclass(frozen=True)
class ObservedDecode:
    """A whole text, and the rounds whose block lies in it to its end."""

    ids: Tensor  # [L]
    features: Tensor  # [L, Dc]
    rounds: list[ObservedRound]
    whole: list[int]  # places in `rounds`
    anchors: Tensor  # [A], of the whole ones
    carried: CarryoverRows

    def truth(self, proposals: int) -> Tensor:
        """[A, K] what the target wrote after each anchor."""
        return self.ids[self.anchors[:, None] + 1 + torch.arange(proposals, device=self.ids.device)]


class ObservingDrafter(WrappedDrafter):
    """A drafter that keeps what it was asked and what it answered."""

    def __init__(self, drafter: BlockDrafter) -> None:
        super().__init__(drafter)
        self.rounds: list[ObservedRound] = []

    def draft(
        self, anchor: int, retained: Retained, shifts: Sequence[int], cache: Any, *more: Any, **asked: Any
    ) -> Draft:
        position = len(cache)
        draft = super().draft(anchor, retained, shifts, cache, *more, **asked)
        self.rounds.append(ObservedRound(position, tuple(draft.blocks[0]), retained))
        return draft


def observe(
    model: Any, drafter: BlockDrafter, prompt: Sequence[int], new_tokens: int, end_ids: tuple[int, ...]
) -> ObservedDecode | None:
    """A greedy decode with carried rows on; None when no block lies in it to its end."""
    watcher = ObservingDrafter(drafter)
    decoder = SpeculativeDecoder(model, watcher, DecodeConfig("dflash", carryover=True))
    steps = decoder.decode(list(prompt), SamplingConfig(new_tokens), end_ids=end_ids)
    text = [*prompt, *(token for step in steps for token in step.tokens)]
    ids = torch.tensor(text, device=decoder.target.device)
    features = decoder.target.prefill(ids, decoder.target.new_cache()).features
    rounds = watcher.rounds
    whole = [place for place, each in enumerate(rounds) if each.position + drafter.proposals < len(text)]
    if not whole:
        return None
    counts = [len(rounds[place].retained) for place in whole]
    rows = [rounds[place].retained.features for place in whole]
    anchors = torch.tensor([rounds[place].position for place in whole], device=ids.device)
    carried = CarryoverRows(
        torch.cat([features[:0], *(each for each in rows if each is not None)]),
        torch.arange(len(whole), device=ids.device).repeat_interleave(
            torch.tensor(counts, device=ids.device)
        ),
        torch.cat(
            [
                rounds[p].position + torch.arange(n, device=ids.device)
                for p, n in zip(whole, counts, strict=True)
            ]
        ),
    )
    return ObservedDecode(ids, features, rounds, whole, anchors, carried)


@torch.no_grad()
def candidates(drafter: BlockDrafter, seen: ObservedDecode, carried: bool, count: int) -> Tensor:
    """[A, K, count] best tokens of every slot, each after the block's own tokens before it."""
    rows = seen.carried if carried else None
    hidden = block_states(drafter, seen.ids, seen.features, seen.anchors, rows)
    proposal = drafter.propose(hidden, seen.ids[seen.anchors])
    best = proposal.scores.float().topk(min(count, proposal.scores.shape[-1])).indices
    return drafter.target_ids(best) if proposal.ids is None else proposal.ids.gather(-1, best)


def acceptance_length(
    model: Any,
    drafter: BlockDrafter,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    end_ids: tuple[int, ...],
    carried: str,
) -> float:
    """Tokens a round of greedy chains that carry over one of CARRIED, over all rounds of all prompts."""
    decoder = SpeculativeDecoder(model, drafter, DecodeConfig("dflash", carryover=carried != "nothing"))
    tokens = rounds = 0
    with without_carryover(drafter) if carried == "states" else nullcontext():
        for prompt in prompts:
            steps = list(decoder.decode(list(prompt), SamplingConfig(new_tokens), end_ids=end_ids))[1:]
            tokens, rounds = tokens + sum(len(step.tokens) for step in steps), rounds + len(steps)
    return tokens / max(1, rounds)


@contextmanager
def without_carryover(drafter: BlockDrafter) -> Iterator[None]:
    """While it lasts, carried states are not told from committed ones."""
    kept = drafter.carryover_embedding.data
    drafter.carryover_embedding.data = torch.zeros_like(kept)
    try:
        yield
    finally:
        drafter.carryover_embedding.data = kept
