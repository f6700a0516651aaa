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
from reanchor.core import Draft, Retained, Step, Tree, Verdict
from reanchor.drafters.base import Drafter
from reanchor.graphs.rounds import Whole
from reanchor.proposal import Trie, proposer_for
from reanchor.proposal.auto import BELIEFS, CANDIDATES
from reanchor.proposal.costs import Costs
from reanchor.proposal.draws import likeliest
from reanchor.sampling import Choice
from reanchor.target import Target, TargetOutput, refuse_nan
from reanchor.verification import verify

BLOCK, BLOCKS = 128, 32  # scores in a block, blocks that `beliefs` looks into

Stage = Callable[[str], AbstractContextManager[object]]


def untimed(_name: str) -> AbstractContextManager[object]:
    return nullcontext()


@torch.no_grad()
def decode(
    target: Target,
    drafter: Drafter,
    prompt: Tensor,
    choice: Choice,
    config: DecodeConfig,
    stage: Stage = untimed,
    costs: Costs | None = None,
    whole: Whole | None = None,
) -> Iterator[Step]:
    """Yield the committed tokens round by round, the prefill's one first. prompt: [P] on the target's device.

    `stage(name)` is entered around prefill, draft, assemble, verify and commit, for whoever keeps the time. With
    `whole`, rounds of fixed shapes are one call each; those that have none go the same way as without.
    All state lives in this call.
    """
    cache, context = target.new_cache(), drafter.new_cache()
    seed = choice.seed() if by_rejection(choice, config) else None
    times = choice.times.at if races(drafter, choice, config) else None
    retained = Retained()

    with stage("prefill"):
        proposer = proposer_for(config, prompt.tolist(), costs, choice.sample, seed, times)
        output = target.prefill(prompt, cache)
        refuse_nan(output.logits)
        tree = Trie(int(prompt[-1])).freeze()
        verdict = verify(tree, output.logits, choice)
        drafter.commit(output.features, context)
        warmth = choice.temperature if choice.sample else 1.0
        proposer.learn(tree, verdict, partial(beliefs, output.logits, warmth), [])
    yield Step(verdict.tokens, tree, verdict, drafted=0, retained=0, stopped=verdict.stopped, cache=cache)

    rounds = whole.begin(cache, context, choice) if whole is not None else None
    while not verdict.stopped:
        was_retained = len(retained)
        with stage("assemble"):
            plan = proposer.plan(shifts_allowed(was_retained, config), choice.room - 1)
        played = rounds.play(verdict.tokens[-1], retained, plan.blocks, stage) if rounds is not None else None
        if played is not None:
            tree, verdict, drafted, retained = played
            yield Step(verdict.tokens, tree, verdict, drafted, was_retained, verdict.stopped, cache, plan)
            continue
        with stage("draft"):
            draft = propose(drafter, verdict.tokens[-1], retained, context, choice, config, plan.blocks)
        with stage("assemble"):
            tree = proposer.assemble(draft, retained, choice.room - 1)
        with stage("verify"):
            output = target.verify(tree, cache)
            verdict = verify(tree, output.logits, choice, draft.distribution)
        with stage("commit"):
            cache.commit(verdict.path)
            drafter.commit(output.features[verdict.path], context)
            nodes = proposer.rejected(tree, verdict)
            proposer.learn(tree, verdict, partial(beliefs, output.logits, warmth), nodes)
            retained = retain(nodes, tree, verdict, output, choice if times is not None else None)
        drafted = len(draft.offsets)
        yield Step(verdict.tokens, tree, verdict, drafted, was_retained, verdict.stopped, cache, plan)


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
    choice: Choice,
    config: DecodeConfig,
    blocks: int,
) -> Draft:
    """The blocks of one round; the anchor alone for no block, or when only the bonus token is still allowed."""
    if choice.room == 1 or not blocks:
        return Draft((), [[anchor]])
    top_k = 0 if by_rejection(choice, config) else candidates_wanted(config)
    asked: dict[str, Any] = {}  # what only some drafters can do is asked only when wanted
    if config.carryover:
        asked["carry"] = "all" if config.carry_shifted else "baseline"
    if by_rejection(choice, config):
        asked["draw"] = choice.draw if config.method == "dflash" else choice.weigh
    if raced := races(drafter, choice, config) and getattr(drafter, "races", False):
        asked["race"] = choice.race
    draft = drafter.draft(anchor, retained, range(1, blocks), context, top_k, **asked)
    draft = replace(draft, raced=raced)
    if config.method != "ddtree":
        return draft
    if top_k and draft.candidates is None:
        raise ValueError(f"method ddtree needs candidates, which {type(drafter).__name__} does not give")
    return draft if draft.distribution is None else likeliest(draft)


def by_rejection(choice: Choice, config: DecodeConfig) -> bool:
    return choice.sample and config.stochastic == "rejection" and config.method != "plain"


def races(drafter: Drafter, choice: Choice, config: DecodeConfig) -> bool:
    """Do drafts know the numbers of the target's draw? ValueError where that was asked for and cannot be."""
    if not config.races or not choice.sample or config.method == "plain":
        return False
    if config.stochastic == "race":
        if not choice.foresees:
            raise ValueError(
                "stochastic 'race' foresees the numbers of the draw, and a processor here reads the text or keeps "
                "scores: use stochastic 'sample'"
            )
        if not getattr(drafter, "races", False):
            raise ValueError(f"{type(drafter).__name__} cannot race: use stochastic 'sample'")
    return choice.foresees


def candidates_wanted(config: DecodeConfig) -> int:
    """How many of the drafter's candidates at every position the method asks for."""
    if config.method == "auto":
        return CANDIDATES
    return config.node_budget - 1 if config.method == "ddtree" and config.node_budget else 0


def retain(
    nodes: list[int], tree: Tree, verdict: Verdict, output: TargetOutput, choice: Choice | None
) -> Retained:
    """The states of rejected nodes and the target's tokens after them; with a `choice` those that it would draw."""
    if not nodes:
        return Retained()
    if choice is None or verdict.stopped or output.logits.device.type != "cpu":
        return Retained(tuple(verdict.choices[node] for node in nodes), output.features[nodes])
    places = [tree.depths[node] - len(verdict.tokens) for node in nodes]
    return Retained(tuple(choice.at_places(output.logits[nodes], places)), output.features[nodes])


def beliefs(logits: Tensor, temperature: float = 1.0) -> list[dict[int, float]]:
    """The target's likeliest tokens at every node and their probabilities, for later rounds. logits: [N, V]

    The largest of a row lie in the blocks with the largest maxima, and a probability is one among those blocks: hardly
    too high, where a sum over the vocabulary would take longer than all else between two passes.
    """
    width = logits.shape[-1]
    near = logits
    if in_blocks := width % BLOCK == 0 and width > BLOCK * BLOCKS:
        blocks = logits.view(len(logits), -1, BLOCK)
        held = blocks.amax(-1).topk(BLOCKS).indices  # [N, BLOCKS]
        near = blocks.gather(1, held[..., None].expand(-1, -1, BLOCK)).flatten(1)
    tokens = near.topk(min(BELIEFS, width)).indices
    # nan would stay in what is learnt
    chances = (near.float() / temperature).softmax(-1).gather(1, tokens).nan_to_num(0.0).tolist()
    places = tokens.tolist()
    if in_blocks:
        places = [
            [block[place // BLOCK] * BLOCK + place % BLOCK for place in row]
            for block, row in zip(held.tolist(), places, strict=True)
        ]
    return [dict(zip(*row, strict=True)) for row in zip(places, chances, strict=True)]
