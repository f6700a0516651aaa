"""Evaluation of a drafter on held-out text: packed at matched anchors, and by really decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reanchor.config import DecodeConfig, SamplingConfig
from reanchor.decoder import SpeculativeDecoder
from reanchor.drafters.block import BlockDrafter
from reanchor.target import end_ids
from reanchor.training.anchors import rng_of
from reanchor.training.drafter_loss import BatchBuilder, TrainingBatch
from reanchor.training.objective import acceptance
from reanchor.training.packed import block_states
from reanchor.training.responses import Response

PROBE = -1  # what seeds the probe's anchors in place of a step


@torch.no_grad()
def matched(lesson: BatchBuilder, responses: Sequence[Response], seed: int) -> dict[str, float]:
    """Tokens a round from the same anchors against the record: with carried rows (on) and without (off)."""
    counts: dict[str, list[float]] = {"on": [], "off": []}
    for place, response in enumerate(responses):
        material = lesson.prepare(response, rng_of(seed, PROBE, place))
        if not material.weight:
            continue
        counts["off"] += tokens_a_round(lesson.drafter, replace(material, carried=None)).tolist()
        if material.carried is not None:
            counts["on"] += tokens_a_round(lesson.drafter, material).tolist()
    return {f"matched_{name}": sum(each) / len(each) for name, each in counts.items() if each}


def tokens_a_round(drafter: BlockDrafter, material: TrainingBatch) -> Tensor:
    """[A] what a round from each anchor would commit of the record, bonus included; the whole vocabulary."""
    ids, anchors = material.ids, material.anchors
    hidden = block_states(drafter, ids, material.features, anchors, material.carried)
    tokens = drafter.propose(hidden, ids[anchors]).tokens  # [A, K]
    places = anchors[:, None] + 1 + torch.arange(drafter.proposals, device=ids.device)
    return acceptance(tokens == ids[places])


def decoded(
    drafter: BlockDrafter, model: Any, responses: Sequence[Response], new_tokens: int, config: DecodeConfig
) -> dict[str, float]:
    """The acceptance length of real greedy decodes of held-out prompts."""
    decoder = SpeculativeDecoder(model, drafter, config)
    ends, tokens, rounds = end_ids(model), 0, 0
    for response in responses:
        steps = list(
            decoder.decode(list(response.prompt_ids), SamplingConfig(max_new_tokens=new_tokens), end_ids=ends)
        )[1:]
        tokens, rounds = tokens + sum(len(step.tokens) for step in steps), rounds + len(steps)
    drafter.body.rotary.table = None  # made without autograd's leave, so of no use to training
    return {"tau": tokens / max(1, rounds), "rounds": rounds}
