"""The methods that follow a rule, in the three steps that method auto takes too."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from reanchor.config import DecodeConfig
from reanchor.core import Draft, Plan, Retained, Tree, VerifyResult
from reanchor.proposal.assembly import assemble
from reanchor.proposal.auto import AutoProposer
from reanchor.proposal.drawn_tree import SiblingAcceptance, grow_by_draws
from reanchor.proposal.latency import LatencyModel
from reanchor.proposal.retention import first_children, rejected_path
from reanchor.proposal.sources import NoiseAt, Probabilities
from reanchor.proposal.tree_builder import TreeBuilder


class Rule:
    """Draft every block there can be, attach and retain as the config says."""

    def __init__(self, config: DecodeConfig, seed: int | None = None) -> None:
        """seed: of what is drawn from the drafter."""
        self.config, self.rng = config, random.Random(config.attach_seed)
        self.draws, self.acceptance = random.Random(seed), SiblingAcceptance()
        self.chances: list[list[float]] = []  # [K][k] of the round under way

    def plan(self, shifts: int, max_depth: int) -> Plan:
        return Plan("rule", 1 + shifts, "fixed")

    def assemble(self, draft: Draft, retained: Retained, max_depth: int) -> Tree:
        if self.config.method == "ddtree" and draft.distribution is not None:
            return self._drawn(draft, max_depth)
        return assemble(draft, retained, self.config, max_depth, self.rng)

    def _drawn(self, draft: Draft, max_depth: int) -> Tree:
        assert draft.candidates is not None and draft.log_probs is not None
        self.chances = draft.log_probs[0].exp().tolist()
        builder = TreeBuilder(draft.blocks[0][0], self.config.node_budget, max_depth)
        grow_by_draws(builder, draft.candidates[0].tolist(), self.chances, self.acceptance, self.draws)
        return builder.freeze()

    def rejected(self, tree: Tree, result: VerifyResult) -> list[int]:
        """The nodes whose states the next round reads."""
        if self.config.method != "reanchor" and not self.config.carryover:
            return []
        if self.config.method == "ddtree":  # a tree of candidates has no inserted paths
            return first_children(tree, result)
        return rejected_path(tree, result, self.config.retention)

    def learn(
        self,
        tree: Tree,
        result: VerifyResult,
        beliefs: Callable[[], Sequence[Probabilities]],
        kept: Sequence[int],
    ) -> None:
        if self.chances:
            self.acceptance.learn_all(tree, result, self.chances)
            self.chances = []


def proposer_for(
    config: DecodeConfig,
    prompt: Sequence[int],
    costs: LatencyModel | None,
    sampled: bool,
    seed: int | None,
    times: NoiseAt | None = None,
) -> Rule | AutoProposer:
    """What assembles the trees of one decode. sampled: the target samples; seed: of what is drawn from the drafter;
    times: what the target's draws are decided by, where drafts may know.
    """
    if config.method == "auto":
        return AutoProposer(prompt, config.node_budget or 1, costs, sampled, times)
    return Rule(config, seed)
