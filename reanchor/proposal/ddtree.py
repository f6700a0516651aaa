"""The likeliest tree of a block's candidates under a node budget (DDTree, arXiv 2604.12989): numbers only.

A block's positions are predicted independently, so a path's probability is the product of its candidates'; the
tree of the N likeliest prefixes is grown best-first, each step opening the next candidate and the next depth.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

from reanchor.core import BASELINE, Draft, Retained, Tree, VerifyResult
from reanchor.proposal.drawn_tree import SiblingAcceptance, grow_by_draws, sharpen_draft
from reanchor.proposal.proposer import FixedRuleProposer, ProposerSetting, TopCandidates
from reanchor.proposal.retention import first_children
from reanchor.proposal.tree_builder import TreeBuilder


class DDTreeProposer(FixedRuleProposer):
    """The likeliest candidates best-first; under rejection, siblings drawn from the drafter (`drawn_tree`)."""

    draws_drafts = False

    def __init__(self, setting: ProposerSetting) -> None:
        super().__init__(setting)
        self.sampler, self.acceptance = random.Random(setting.seed), SiblingAcceptance()
        self.probabilities: list[list[float]] = []  # [K][k] of the round under way
        self.top_k = (self.config.node_budget or 1) - 1 if setting.seed is None else 0

    def prepare(self, draft: Draft) -> Draft:
        if self.top_k and draft.offsets and draft.candidates is None:
            raise ValueError(
                "method ddtree needs candidates, which this drafter does not give: use method dflash or reanchor"
            )
        return draft if draft.distribution is None else sharpen_draft(draft)

    def assemble(self, draft: Draft, retained: Retained, max_depth: int) -> Tree:
        builder = TreeBuilder(draft.blocks[0][0], self.config.node_budget, max_depth)
        if draft.candidates is None or draft.log_probs is None:
            return builder.freeze()
        if draft.distribution is not None:
            self.probabilities = draft.log_probs[0].exp().tolist()
            candidates = draft.candidates[0].tolist()
            grow_by_draws(builder, candidates, self.probabilities, self.acceptance, self.sampler)
        else:
            kept = len(draft.blocks[0]) - 1  # a drafter may cut its block
            grow_best_first(builder, draft.candidates[0, :kept].tolist(), draft.log_probs[0, :kept].tolist())
        return builder.freeze()

    def retain(self, tree: Tree, result: VerifyResult) -> list[int]:
        """Down by first children, where a Carryover drafter reads them: this tree has no inserted paths."""
        return first_children(tree, result) if self.config.carryover else []

    def observe(
        self, tree: Tree, result: VerifyResult, candidates: TopCandidates, retained: Sequence[int]
    ) -> None:
        if self.probabilities:
            self.acceptance.learn_all(tree, result, self.probabilities)
            self.probabilities = []


def grow_best_first(
    builder: TreeBuilder, candidates: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]
) -> None:
    """Add nodes of the highest path probability until the tree's budget or the candidates are spent.

    candidates, log_probs: [K][k], best first in every row; row j belongs to depth j + 1.
    """
    deepest = len(candidates) if builder.max_depth is None else min(len(candidates), builder.max_depth)
    if not deepest:
        return
    # an entry is the best unopened child of its parent: (minus log-probability of the path, depth, rank, parent)
    frontier = [(-log_probs[0][0], 0, 0, 0)]
    while frontier and (builder.max_nodes is None or len(builder.tokens) < builder.max_nodes):
        cost, depth, rank, parent = heapq.heappop(frontier)
        node = builder.add(parent, candidates[depth][rank], BASELINE)
        if rank + 1 < len(candidates[depth]):
            step = log_probs[depth][rank] - log_probs[depth][rank + 1]
            heapq.heappush(frontier, (cost + step, depth, rank + 1, parent))
        if depth + 1 < deepest:
            heapq.heappush(frontier, (cost - log_probs[depth + 1][0], depth + 1, 0, node))
