"""The likeliest tree of a block's candidates under a node budget (DDTree, arXiv 2604.12989): numbers only.

A block's positions are predicted independently, so a path's probability is the product of its candidates'; the
tree of the N likeliest prefixes is grown best-first, each step opening the next candidate and the next depth.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from reanchor.core import BASELINE
from reanchor.proposal.tree_builder import TreeBuilder


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
