"""Trees of a method for one draft, without a decode around them."""

from __future__ import annotations

from reanchor.config import DecodeConfig
from reanchor.core import Draft, Retained, Tree
from reanchor.proposal import ProposerSetting, make_proposer
from reanchor.proposal.auto import AutoProposer


def assemble(draft: Draft, retained: Retained, config: DecodeConfig, max_depth: int) -> Tree:
    return make_proposer(ProposerSetting(config, [1])).assemble(draft, retained, max_depth)


def auto_proposer(prompt, max_nodes, costs=None, sampled=False, times=None) -> AutoProposer:
    config = DecodeConfig("auto", max_nodes=max_nodes)
    return AutoProposer(ProposerSetting(config, prompt, costs, sampled, noise=times))
