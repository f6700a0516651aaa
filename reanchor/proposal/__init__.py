"""From blocks of tokens to the tree the target checks: integer work only, no model in sight."""

from reanchor.proposal.assembly import assemble
from reanchor.proposal.retention import rejected_path
from reanchor.proposal.trie import Trie

__all__ = ["Trie", "assemble", "rejected_path"]
