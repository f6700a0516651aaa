"""Method plain: nothing is proposed, and every round is the target's next token."""

from __future__ import annotations

from reanchor.core import BASELINE, Draft, Plan, Retained, Tree, VerifyResult
from reanchor.proposal.proposer import FixedRuleProposer
from reanchor.proposal.tree_builder import TreeBuilder


class PlainProposer(FixedRuleProposer):
    """The anchor alone."""

    def plan(self, shifts: int, max_depth: int) -> Plan:
        return Plan("plain", 0, "fixed")

    def assemble(self, draft: Draft, retained: Retained, max_depth: int) -> Tree:
        builder = TreeBuilder(draft.blocks[0][0])
        builder.insert(draft.blocks[0][:1], BASELINE)
        return builder.freeze()

    def retain(self, tree: Tree, result: VerifyResult) -> list[int]:
        return []
