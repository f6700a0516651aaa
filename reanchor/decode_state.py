"""The state of one decode between two rounds, and what all its rounds share.

A round takes a `DecodeState` and returns the next one: everything that changes from round to round is in it, so that a
round over the states of several decodes needs no other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from reanchor.cache import TreeCache
from reanchor.config import DecodeConfig
from reanchor.core import Plan, Retained, Round, Tree, VerifyResult
from reanchor.drafters.base import Drafter
from reanchor.graphs.graphed_rounds import GraphedDecode
from reanchor.proposal import Proposer
from reanchor.sampling import TokenSelector
from reanchor.sampling_mode import DecodeMode
from reanchor.target import Target

Stage = Callable[[str], AbstractContextManager[object]]


def untimed(_name: str) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True)
class RoundEngine:
    """What the rounds of any decode share: the pair, the knobs, and who keeps the time.

    `stage(name)` is entered around prefill, draft, assemble, verify and commit.
    """

    target: Target
    drafter: Drafter
    config: DecodeConfig
    stage: Stage = untimed


@dataclass(frozen=True)
class DecodeState:
    """One decode between two rounds. The caches, the proposer and the selector change in place with every round."""

    cache: TreeCache
    context: Any  # the drafter's cache of committed positions
    proposer: Proposer
    selector: TokenSelector
    mode: DecodeMode
    anchor: int  # the last token committed; no cache holds its row yet
    retained: Retained
    stopped: bool
    graphed: GraphedDecode | None = None  # rounds of fixed shapes, where they are asked for

    @property
    def shifts(self) -> int:
        """Shifted blocks that the next round may draft."""
        most = self.proposer.max_shifts
        return len(self.retained) if most is None else min(len(self.retained), most)

    @property
    def max_depth(self) -> int:
        """Deepest node worth verifying: the tokens still allowed, less the bonus."""
        return self.selector.room - 1

    def after(
        self, plan: Plan, tree: Tree, result: VerifyResult, drafted: int, retained: Retained
    ) -> tuple[DecodeState, Round]:
        """The next state and the round that led to it. drafted: blocks."""
        tokens, stopped = result.tokens, result.stopped
        round_ = Round(tokens, tree, result, drafted, len(self.retained), stopped, self.cache, plan)
        return replace(self, anchor=tokens[-1], retained=retained, stopped=stopped), round_
