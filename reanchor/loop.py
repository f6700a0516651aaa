"""The decode loop: draft, assemble, verify, commit, yield. It knows no clock, no text and no printing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from reanchor.config import DecodeConfig
from reanchor.core import Draft, Retained, Step, Tree, Verdict
from reanchor.drafters.base import Drafter
from reanchor.proposal import Trie, assemble, rejected_path
from reanchor.proposal.auto import BELIEFS, CANDIDATES, Auto, first_children
from reanchor.sampling import Choice
from reanchor.target import Target
from reanchor.verification import verify

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
) -> Iterator[Step]:
    """Yield the committed tokens round by round, the prefill's one first. prompt: [P] on the target's device.

    `stage(name)` is entered around prefill, draft, assemble, verify and commit, for whoever keeps the time.
    All state lives in this call.
    """
    cache, context = target.new_cache(), drafter.new_cache()
    rng, auto = random.Random(config.attach_seed), Auto(prompt.tolist()) if config.method == "auto" else None
    retained = Retained()

    with stage("prefill"):
        output = target.prefill(prompt, cache)
        tree = Trie(int(prompt[-1])).freeze()
        verdict = verify(tree, output.logits, choice)
        drafter.commit(output.features, context)
        if auto is not None:
            auto.learn(tree, verdict, beliefs(output.logits), [])
    yield Step(verdict.tokens, tree, verdict, drafted=0, retained=0, stopped=verdict.stopped, cache=cache)

    while not verdict.stopped:
        with stage("draft"):
            draft = propose(drafter, verdict.tokens[-1], retained, context, choice, config)
        with stage("assemble"):
            if auto is not None:
                tree = auto.assemble(draft, config.node_budget, choice.room - 1)
            else:
                tree = assemble(draft, retained, config, choice.room - 1, rng)
        with stage("verify"):
            output = target.verify(tree, cache)
            verdict = verify(tree, output.logits, choice, draft.distribution)
        with stage("commit"):
            cache.commit(verdict.path)
            drafter.commit(output.features[verdict.path], context)
            nodes = rejected(tree, verdict, config)
            if auto is not None:
                auto.learn(tree, verdict, beliefs(output.logits), nodes)
            was_retained, retained = len(retained), retain(nodes, verdict, output.features)
        yield Step(verdict.tokens, tree, verdict, len(draft.offsets), was_retained, verdict.stopped, cache)


def propose(
    drafter: Drafter, anchor: int, retained: Retained, context: object, choice: Choice, config: DecodeConfig
) -> Draft:
    """The blocks of one round; the anchor alone when only the bonus token is still allowed."""
    if choice.room == 1:
        return Draft((), [[anchor]])
    shifts = 0
    if config.method in ("reanchor", "auto"):
        shifts = len(retained) if config.max_shifts is None else min(len(retained), config.max_shifts)
    top_k = candidates_wanted(config)
    asked: dict[str, Any] = {}  # what only some drafters can do is asked only when wanted
    if config.carryover:
        asked["carry"] = "all" if config.carry_shifted else "baseline"
    if config.stochastic == "rejection" and choice.sample:
        asked["draw"] = choice.draw
    draft = drafter.draft(anchor, retained, range(1, shifts + 1), context, top_k, **asked)
    if top_k and draft.candidates is None:
        raise ValueError(
            f"method {config.method} needs candidates, which {type(drafter).__name__} does not give"
        )
    return draft


def candidates_wanted(config: DecodeConfig) -> int:
    """How many of the drafter's candidates at every position the method asks for."""
    if config.method == "auto":
        return CANDIDATES
    return config.node_budget - 1 if config.method == "ddtree" and config.node_budget else 0


def rejected(tree: Tree, verdict: Verdict, config: DecodeConfig) -> list[int]:
    """The nodes whose states the next round reads."""
    if config.method == "auto":
        return first_children(tree, verdict)
    if config.method != "reanchor" and not config.carryover:
        return []
    return rejected_path(tree, verdict, config.retention)


def retain(nodes: list[int], verdict: Verdict, features: Tensor) -> Retained:
    """The states of rejected nodes and the target's tokens after them. features: [N, Dc]"""
    return Retained(tuple(verdict.choices[node] for node in nodes), features[nodes]) if nodes else Retained()


def beliefs(logits: Tensor) -> list[dict[int, float]]:
    """The target's likeliest tokens at every node and their probabilities, for later rounds. logits: [N, V]"""
    best, tokens = logits.topk(min(BELIEFS, logits.shape[-1]))
    chances = (best.float() - logits.float().logsumexp(-1, keepdim=True)).exp()
    return [dict(zip(*row, strict=True)) for row in zip(tokens.tolist(), chances.tolist(), strict=True)]
