"""Method reanchor: the baseline block and the blocks re-anchored on retained states, merged into one tree (paper,
section 3 and algorithm 1; the rules are those of its ablations, `ReAnchorRules`).
"""

from __future__ import annotations

import random

from reanchor.config import Scope
from reanchor.core import BASELINE, VERIFIER_PATH, Draft, Retained, Tree, VerifyResult
from reanchor.proposal.matching import attachment_sites
from reanchor.proposal.proposer import FixedRuleProposer, ProposerSetting
from reanchor.proposal.retention import rejected_path
from reanchor.proposal.tree_builder import TreeBuilder


class ReAnchorProposer(FixedRuleProposer):
    """Shifted blocks at the places that token matching finds."""

    def __init__(self, setting: ProposerSetting) -> None:
        super().__init__(setting)
        self.rules = setting.config.rules
        self.max_shifts = self.rules.max_shifts
        self.rng = random.Random(self.rules.attach_seed)

    def assemble(self, draft: Draft, retained: Retained, max_depth: int) -> Tree:
        """The baseline, the verifier path if asked for, and every shifted block that finds a place (method, steps 2
        and 3). max_depth: deepest node worth verifying, the tokens still allowed less the bonus.
        """
        rules, baseline = self.rules, draft.blocks[0]
        builder = TreeBuilder(baseline[0], self.config.node_budget, max_depth)
        builder.insert(baseline, BASELINE)
        verifier = [baseline[0], *retained.tokens]
        if rules.verifier_path != "off" and retained:
            builder.insert(verifier, VERIFIER_PATH)
        matched = 0
        for offset, block in zip(draft.offsets[1:], draft.blocks[1:], strict=True):
            sites = attachment_sites(rules.attach, baseline, block, offset, self.rng)
            matched += bool(sites)
            for site in sites:
                builder.insert(_within(rules.scope, baseline[:site] + block, baseline), offset)
            if rules.verifier_path == "attach":
                builder.insert(verifier[:offset] + block, offset)
        return builder.freeze(matched)

    def retain(self, tree: Tree, result: VerifyResult) -> list[int]:
        return rejected_path(tree, result, self.rules.retention)


def _within(scope: Scope, path: list[int], baseline: list[int]) -> list[int]:
    """The part of a shifted block's path that the scope keeps (paper, Table 4)."""
    if scope == "in_block":
        return path[: len(baseline)]
    if scope == "extension":
        return baseline + path[len(baseline) :]
    return path
