"""The decode loop: draft, assemble, verify, commit, yield. It knows no clock, no text and no printing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reanchor.config import DecodeConfig
from reanchor.core import Draft, Retained, Round, Tree, VerifyResult
from reanchor.drafters.base import Drafter
from reanchor.graphs.graphed_rounds import GraphedRounds
from reanchor.proposal import TreeBuilder, proposer_for
from reanchor.proposal.auto import CANDIDATES, RECYCLED_TOP_K
from reanchor.proposal.drawn_tree import sharpen_draft
from reanchor.proposal.latency import LatencyModel
from reanchor.sampling import TokenSelector
from reanchor.target import Target, TargetOutput, refuse_nan
from reanchor.verification import verify

CHUNK, CHUNKS = 128, 32  # scores in a block, blocks that `beliefs` looks into

Stage = Callable[[str], AbstractContextManager[object]]


def untimed(_name: str) -> AbstractContextManager[object]:
    return nullcontext()


@torch.no_grad()
def decode(
    target: Target,
    drafter: Drafter,
    prompt: Tensor,
    selector: TokenSelector,
    config: DecodeConfig,
    stage: Stage = untimed,
    costs: LatencyModel | None = None,
    whole: GraphedRounds | None = None,
) -> Iterator[Round]:
    """Yield the committed tokens round by round, the prefill's one first. prompt: [P] on the target's device.

    `stage(name)` is entered around prefill, draft, assemble, verify and commit, for whoever keeps the time. With
    `whole`, rounds of fixed shapes are one call each; those that have none go the same way as without.
    All state lives in this call.
    """
    cache, context = target.new_cache(), drafter.new_cache()
    seed = selector.seed() if uses_rejection(selector, config) else None
    times = selector.times.at if couples_drafts(drafter, selector, config) else None
    retained = Retained()

    with stage("prefill"):
        proposer = proposer_for(config, prompt.tolist(), costs, selector.sample, seed, times)
        output = target.prefill(prompt, cache)
        refuse_nan(output.logits)
        tree = TreeBuilder(int(prompt[-1])).freeze()
        result = verify(tree, output.logits, selector)
        drafter.commit(output.features, context)
        warmth = selector.temperature if selector.sample else 1.0
        proposer.learn(tree, result, partial(top_candidates, output.logits, warmth), [])
    yield Round(result.tokens, tree, result, drafted=0, retained=0, stopped=result.stopped, cache=cache)

    rounds = whole.begin(cache, context, selector) if whole is not None else None
    while not result.stopped:
        was_retained = len(retained)
        with stage("assemble"):
            plan = proposer.plan(shifts_allowed(was_retained, config), selector.room - 1)
        played = rounds.play(result.tokens[-1], retained, plan.blocks, stage) if rounds is not None else None
        if played is not None:
            tree, result, drafted, retained = played
            yield Round(result.tokens, tree, result, drafted, was_retained, result.stopped, cache, plan)
            continue
        with stage("draft"):
            draft = propose(drafter, result.tokens[-1], retained, context, selector, config, plan.blocks)
        with stage("assemble"):
            tree = proposer.assemble(draft, retained, selector.room - 1)
        with stage("verify"):
            output = target.verify(tree, cache)
            result = verify(tree, output.logits, selector, draft.distribution)
        with stage("commit"):
            cache.commit(result.path)
            drafter.commit(output.features[result.path], context)
            nodes = proposer.rejected(tree, result)
            proposer.learn(tree, result, partial(top_candidates, output.logits, warmth), nodes)
            retained = retained_states(nodes, tree, result, output, selector if times is not None else None)
        drafted = len(draft.offsets)
        yield Round(result.tokens, tree, result, drafted, was_retained, result.stopped, cache, plan)


def shifts_allowed(retained: int, config: DecodeConfig) -> int:
    """Shifted blocks that a round may draft."""
    if config.method not in ("reanchor", "auto"):
        return 0
    return retained if config.max_shifts is None else min(retained, config.max_shifts)


def propose(
    drafter: Drafter,
    anchor: int,
    retained: Retained,
    context: object,
    selector: TokenSelector,
    config: DecodeConfig,
    blocks: int,
) -> Draft:
    """The blocks of one round; the anchor alone for no block, or when only the bonus token is still allowed."""
    if selector.room == 1 or not blocks:
        return Draft((), [[anchor]])
    top_k = 0 if uses_rejection(selector, config) else candidates_wanted(config)
    asked: dict[str, Any] = {}  # what only some drafters can do is asked only when wanted
    if config.carryover:
        asked["carry"] = "all" if config.carryover_shifted else "baseline"
    if uses_rejection(selector, config):
        asked["draw"] = selector.draw if config.method == "dflash" else selector.weigh
    if coupled := couples_drafts(drafter, selector, config) and getattr(drafter, "supports_coupling", False):
        asked["couple"] = selector.couple
    draft = drafter.draft(anchor, retained, range(1, blocks), context, top_k, **asked)
    draft = replace(draft, coupled=coupled)
    if config.method != "ddtree":
        return draft
    if top_k and draft.candidates is None:
        raise ValueError(f"method ddtree needs candidates, which {type(drafter).__name__} does not give")
    return draft if draft.distribution is None else sharpen_draft(draft)


def uses_rejection(selector: TokenSelector, config: DecodeConfig) -> bool:
    return selector.sample and config.sampling_mode == "rejection" and config.method != "plain"


def couples_drafts(drafter: Drafter, selector: TokenSelector, config: DecodeConfig) -> bool:
    """Do drafts know the numbers of the target's draw? ValueError where that was asked for and cannot be."""
    if not config.couples or not selector.sample or config.method == "plain":
        return False
    if config.sampling_mode == "coupled":
        if not selector.noise_is_predictable:
            raise ValueError(
                "sampling_mode 'coupled' drafts with the noise of the target's draws, and a processor here reads the "
                "text or keeps scores: use sampling_mode 'exact-match'"
            )
        if not getattr(drafter, "supports_coupling", False):
            raise ValueError(
                f"{type(drafter).__name__} cannot couple its drafts: use sampling_mode 'exact-match'"
            )
    return selector.noise_is_predictable


def candidates_wanted(config: DecodeConfig) -> int:
    """How many of the drafter's candidates at every position the method asks for."""
    if config.method == "auto":
        return CANDIDATES
    return config.node_budget - 1 if config.method == "ddtree" and config.node_budget else 0


def retained_states(
    nodes: list[int], tree: Tree, result: VerifyResult, output: TargetOutput, selector: TokenSelector | None
) -> Retained:
    """The states of rejected nodes and the target's tokens after them; with a `selector` those that it would draw."""
    if not nodes:
        return Retained()
    if selector is None or result.stopped or output.logits.device.type != "cpu":
        return Retained(tuple(result.choices[node] for node in nodes), output.features[nodes])
    places = [tree.depths[node] - len(result.tokens) for node in nodes]
    return Retained(tuple(selector.peek(output.logits[nodes], places)), output.features[nodes])


def top_candidates(logits: Tensor, temperature: float = 1.0) -> list[dict[int, float]]:
    """The target's likeliest tokens at every node and their probabilities, for later rounds. logits: [N, V]

    The largest of a row lie in the blocks with the largest maxima, and a probability is one among those blocks: hardly
    too high, where a sum over the vocabulary would take longer than all else between two passes.
    """
    width = logits.shape[-1]
    near = logits
    if in_blocks := width % CHUNK == 0 and width > CHUNK * CHUNKS:
        blocks = logits.view(len(logits), -1, CHUNK)
        held = blocks.amax(-1).topk(CHUNKS).indices  # [N, BLOCKS]
        near = blocks.gather(1, held[..., None].expand(-1, -1, CHUNK)).flatten(1)
    tokens = near.topk(min(RECYCLED_TOP_K, width)).indices
    # nan would stay in what is learnt
    chances = (near.float() / temperature).softmax(-1).gather(1, tokens).nan_to_num(0.0).tolist()
    places = tokens.tolist()
    if in_blocks:
        places = [
            [block[place // CHUNK] * CHUNK + place % CHUNK for place in row]
            for block, row in zip(held.tolist(), places, strict=True)
        ]
    return [dict(zip(*row, strict=True)) for row in zip(places, chances, strict=True)]
