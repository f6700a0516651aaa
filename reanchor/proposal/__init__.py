"""From blocks of tokens to the tree the target checks: integer work only, no model in sight."""

from reanchor.proposal.assembly import assemble
from reanchor.proposal.retention import rejected_path
from reanchor.proposal.rule import proposer_for
from reanchor.proposal.tree_builder import TreeBuilder

__all__ = ["TreeBuilder", "assemble", "proposer_for", "rejected_path"]
