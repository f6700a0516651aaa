"""Which rejected nodes leave their states for the next round (method, step 7)."""

from __future__ import annotations

from reanchor.config import Retention
from reanchor.core import Tree, VerifyResult


def rejected_path(tree: Tree, result: VerifyResult, rule: Retention) -> list[int]:
    """Nodes after the last accepted one on the first (or the longest) inserted path that goes on beyond it."""
    accepted = len(result.path)
    beyond = [path for path in tree.paths if len(path) > accepted and path[accepted - 1] == result.path[-1]]
    if not beyond:
        return []
    chosen = beyond[0] if rule == "first" else max(beyond, key=len)
    return chosen[accepted:]


def first_children(tree: Tree, result: VerifyResult) -> list[int]:
    """Down from the last accepted node by the first child, the likeliest one: the rejected path of a tree without
    inserted paths.
    """
    first: dict[int, int] = {}
    for node, parent in enumerate(tree.parents):
        first.setdefault(parent, node)
    kept, node = [], result.path[-1]
    while node in first:
        node = first[node]
        kept.append(node)
    return kept
