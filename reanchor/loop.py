"""The decode loop: draft, assemble, verify, commit, yield. It knows no clock, no text and no printing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from reanchor.core import Retained, Round
from reanchor.decode_state import DecodeState, RoundEngine
from reanchor.drafting import predicted_states, propose
from reanchor.graphs.graphed_rounds import GraphedRounds
from reanchor.proposal import ProposerSetting, TreeBuilder, make_proposer
from reanchor.proposal.latency import LatencyModel
from reanchor.proposal.sources import Source
from reanchor.sampling import TokenSelector
from reanchor.sampling_mode import resolve_mode
from reanchor.target import refuse_nan
from reanchor.top_candidates import top_candidates
from reanchor.verification import verify


@torch.no_grad()
def decode(
    engine: RoundEngine,
    prompt: Tensor,
    selector: TokenSelector,
    latency: LatencyModel | None = None,
    graphed: GraphedRounds | None = None,
    sources: tuple[Source, ...] = (),
) -> Iterator[Round]:
    """Yield the rounds of one decode; the prefill's comes first. prompt: [P] on the target's device.

    With `graphed`, rounds of fixed shapes are one call each; those that have none go the same way as without.
    """
    state, round_ = prefill(engine, prompt, selector, latency, sources)
    yield round_
    if graphed is not None:
        state = replace(state, graphed=graphed.begin(state.cache, state.context, selector))
    while not state.stopped:
        state, round_ = decode_round(engine, state)
        yield round_


def prefill(
    engine: RoundEngine,
    prompt: Tensor,
    selector: TokenSelector,
    latency: LatencyModel | None = None,
    sources: tuple[Source, ...] = (),
) -> tuple[DecodeState, Round]:
    """Commit the prompt and the first token."""
    target, drafter = engine.target, engine.drafter
    cache, context = target.new_cache(), drafter.new_cache()
    mode = resolve_mode(engine.config, selector, drafter)
    seed = selector.seed() if mode == "rejection" else None
    noise = selector.noise.row if mode == "coupled" else None
    with engine.stage("prefill"):
        proposer = make_proposer(
            ProposerSetting(
                engine.config,
                prompt.tolist(),
                latency,
                selector.sample,
                seed,
                noise,
                sources,
                drafts=drafter.proposals > 0,
            )
        )
        output = target.prefill(prompt, cache)
        refuse_nan(output.logits)
        tree = TreeBuilder(int(prompt[-1])).freeze()
        result = verify(tree, output.logits, selector)
        drafter.commit(output.features, context)
        proposer.observe(tree, result, partial(top_candidates, output.logits, selector.temperature), [])
    state = DecodeState(
        cache, context, proposer, selector, mode, result.tokens[-1], Retained(), result.stopped
    )
    return state, Round(result.tokens, tree, result, 0, 0, result.stopped, cache)


def decode_round(engine: RoundEngine, state: DecodeState) -> tuple[DecodeState, Round]:
    """One round: draft, assemble, verify, commit."""
    stage, proposer, selector = engine.stage, state.proposer, state.selector
    with stage("assemble"):
        plan = proposer.plan(state.shifts, state.max_depth)
    if state.graphed is not None:
        played = state.graphed.play(state.anchor, state.retained, plan.blocks, stage)
        if played is not None:
            return state.after(plan, *played)
    with stage("draft"):
        draft = proposer.prepare(propose(engine, state, plan.blocks))
    with stage("assemble"):
        tree = proposer.assemble(draft, state.retained, state.max_depth)
    with stage("verify"):
        output = engine.target.verify(tree, state.cache)
        result = verify(tree, output.logits, selector, draft.distribution)
    with stage("commit"):
        state.cache.commit(result.path)
        engine.drafter.commit(output.features[result.path], state.context)
        rejected = proposer.retain(tree, result)
        candidates = partial(top_candidates, output.logits, selector.temperature)
        proposer.observe(tree, result, candidates, rejected)
        retained = predicted_states(rejected, tree, result, output, state)
    return state.after(plan, tree, result, len(draft.offsets), retained)
