"""The proposer of a method: what it asks of a drafter, how it builds a tree, which states it retains, what it observes.

A method is one file here and one row of `reanchor.methods.METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from reanchor.config import DecodeConfig
from reanchor.core import Draft, Plan, Retained, Tree, VerifyResult
from reanchor.methods import METHODS
from reanchor.proposal.latency import LatencyModel
from reanchor.proposal.sources import NoiseAt, Probabilities, Source

TopCandidates = Callable[
    [], Sequence[Probabilities]
]  # the target's likeliest tokens at every node, made when asked


@dataclass(frozen=True)
class ProposerSetting:
    """What a proposer is made from, once a decode.

    Args:
        config: the knobs.
        prompt: its token ids, [P].
        latency: seconds of passes and drafts, where method auto chooses sizes by them.
        sampled: whether the target samples.
        seed: of what is drawn from the drafter's distributions under rejection; None: nothing is.
        noise: of a depth, the sampling noise that decides the target's draw there; None: drafts may not know it.
        sources: further sources of method auto.
        drafts: whether there is a drafter.
    """

    config: DecodeConfig
    prompt: Sequence[int]
    latency: LatencyModel | None = None
    sampled: bool = False
    seed: int | None = None
    noise: NoiseAt | None = None
    sources: tuple[Source, ...] = ()
    drafts: bool = True


class Proposer(Protocol):
    """One decode's. A round calls plan, prepare, assemble, retain and observe, in this order."""

    top_k: int  # candidates asked of the drafter at every position; 0: none
    max_shifts: int | None  # most shifted blocks of a round; None: one a retained state
    draws_drafts: bool  # under rejection: are proposals drawn from the drafter, or its likeliest tokens?

    def plan(self, shifts: int, max_depth: int) -> Plan:
        """The blocks to draft.

        shifts: shifted blocks there could be; max_depth: tokens still allowed, less the bonus.
        """

    def prepare(self, draft: Draft) -> Draft:
        """The draft as trees are built from it and judged against."""

    def assemble(self, draft: Draft, retained: Retained, max_depth: int) -> Tree:
        """The tree of this round, the anchor first."""

    def retain(self, tree: Tree, result: VerifyResult) -> list[int]:
        """The rejected nodes whose states the next round reads (method, step 7)."""

    def observe(
        self, tree: Tree, result: VerifyResult, candidates: TopCandidates, retained: Sequence[int]
    ) -> None:
        """Learn from a verified tree. retained: the nodes that `retain` named."""


class FixedRuleProposer:
    """The parts of methods that follow a rule: draft all blocks there can be, and learn nothing."""

    top_k = 0
    max_shifts: int | None = 0
    draws_drafts = True

    def __init__(self, setting: ProposerSetting) -> None:
        self.config = setting.config

    def plan(self, shifts: int, max_depth: int) -> Plan:
        return Plan("rule", 1 + shifts, "fixed")

    def prepare(self, draft: Draft) -> Draft:
        return draft

    def observe(
        self, tree: Tree, result: VerifyResult, candidates: TopCandidates, retained: Sequence[int]
    ) -> None:
        return None


def make_proposer(setting: ProposerSetting) -> Proposer:
    """The proposer of the method that the config names."""
    module, _, name = METHODS[setting.config.method or "plain"].proposer.partition(":")
    kind: Callable[[ProposerSetting], Proposer] = getattr(import_module(f"reanchor.proposal.{module}"), name)
    return kind(setting)
