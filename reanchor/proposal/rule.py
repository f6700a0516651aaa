"""The methods that follow a rule and learn nothing, in the three steps that method auto takes too."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from reanchor.config import DecodeConfig
from reanchor.core import Draft, Plan, Retained, Tree, Verdict
from reanchor.proposal.assembly import assemble
from reanchor.proposal.auto import Auto
from reanchor.proposal.costs import Costs
from reanchor.proposal.retention import rejected_path
from reanchor.proposal.sources import Chances


class Rule:
    """Draft every block there can be, attach and retain as the config says."""

    def __init__(self, config: DecodeConfig) -> None:
        self.config, self.rng = config, random.Random(config.attach_seed)

    def plan(self, shifts: int, max_depth: int) -> Plan:
        return Plan("rule", 1 + shifts, "fixed")

    def assemble(self, draft: Draft, retained: Retained, max_depth: int) -> Tree:
        return assemble(draft, retained, self.config, max_depth, self.rng)

    def rejected(self, tree: Tree, verdict: Verdict) -> list[int]:
        """The nodes whose states the next round reads."""
        if self.config.method != "reanchor" and not self.config.carryover:
            return []
        return rejected_path(tree, verdict, self.config.retention)

    def learn(
        self, tree: Tree, verdict: Verdict, beliefs: Callable[[], Sequence[Chances]], kept: Sequence[int]
    ) -> None:
        return None


def proposer_for(config: DecodeConfig, prompt: Sequence[int], costs: Costs | None) -> Rule | Auto:
    """What assembles the tries of one decode."""
    return Auto(prompt, config.node_budget or 1, costs) if config.method == "auto" else Rule(config)
