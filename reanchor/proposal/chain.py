"""Method dflash: the baseline block of a DFlash drafter as a chain."""

from __future__ import annotations

from reanchor.core import BASELINE, Draft, Retained, Tree, VerifyResult
from reanchor.proposal.proposer import FixedRuleProposer
from reanchor.proposal.retention import rejected_path
from reanchor.proposal.tree_builder import TreeBuilder


class ChainProposer(FixedRuleProposer):
    """The baseline block, as far as the node budget goes."""

    def assemble(self, draft: Draft, retained: Retained, max_depth: int) -> Tree:
        builder = TreeBuilder(draft.blocks[0][0], self.config.node_budget, max_depth)
        builder.insert(draft.blocks[0], BASELINE)
        return builder.freeze()

    def retain(self, tree: Tree, result: VerifyResult) -> list[int]:
        """The rejected rest of the block, where a Carryover drafter reads it."""
        return rejected_path(tree, result, self.config.rules.retention) if self.config.carryover else []
