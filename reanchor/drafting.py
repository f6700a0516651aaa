"""What a round asks of the drafter, and the rejected states that the next round's drafts are anchored on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reanchor.core import Draft, Retained, Tree, VerifyResult
from reanchor.decode_state import DecodeState, RoundEngine
from reanchor.target import TargetOutput


def propose(engine: RoundEngine, state: DecodeState, blocks: int) -> Draft:
    """The blocks of one round; the anchor alone for no block, or when only the bonus token is still allowed."""
    selector, proposer, drafter = state.selector, state.proposer, engine.drafter
    if selector.room == 1 or not blocks:
        return Draft((), [[state.anchor]])
    asked: dict[str, Any] = {}  # what only some drafters can do is asked only when wanted
    if engine.config.carryover:
        asked["carry"] = "all" if engine.config.rules.carryover_shifted else "baseline"
    if state.mode == "rejection":
        asked["draw"] = selector.draw if proposer.draws_drafts else selector.weigh
    if coupled := state.mode == "coupled" and drafter.supports_coupling:
        asked["couple"] = selector.couple
    draft = drafter.draft(
        state.anchor, state.retained, range(1, blocks), state.context, proposer.top_k, **asked
    )
    return replace(draft, coupled=coupled)


def predicted_states(
    nodes: list[int], tree: Tree, result: VerifyResult, output: TargetOutput, state: DecodeState
) -> Retained:
    """The states of rejected nodes and the target's tokens after them; coupled, those it would draw."""
    if not nodes:
        return Retained()
    tokens = [result.choices[node] for node in nodes]
    if state.mode == "coupled" and not result.stopped and output.logits.device.type == "cpu":
        places = [tree.depths[node] - len(result.tokens) for node in nodes]
        tokens = state.selector.peek(output.logits[nodes], places)
    return Retained(tuple(tokens), output.features[nodes])
