"""From blocks of tokens to the tree the target checks: integer work only, no model in sight."""

from reanchor.proposal.proposer import Proposer, ProposerSetting, make_proposer
from reanchor.proposal.tree_builder import TreeBuilder

__all__ = ["Proposer", "ProposerSetting", "TreeBuilder", "make_proposer"]
