"""From a draft to the tree of one round: attach, merge, cut (method, steps 2 and 3)."""

from __future__ import annotations

import random

from reanchor.config import DecodeConfig, Scope
from reanchor.core import BASELINE, VERIFIER_PATH, Draft, Retained, Tree
from reanchor.proposal.ddtree import grow_best_first
from reanchor.proposal.matching import attachment_sites
from reanchor.proposal.tree_builder import TreeBuilder


def assemble(
    draft: Draft, retained: Retained, config: DecodeConfig, max_depth: int, rng: random.Random
) -> Tree:
    """The tree of the baseline, the verifier path if asked for, and every shifted block that finds a place.

    max_depth: deepest node worth verifying, the tokens still allowed less the bonus.
    """
    baseline = draft.blocks[0]
    builder = TreeBuilder(baseline[0], config.node_budget, max_depth)
    if config.method == "ddtree":
        if draft.candidates is not None and draft.log_probs is not None:
            kept = len(draft.blocks[0]) - 1  # a drafter may cut its block
            grow_best_first(builder, draft.candidates[0, :kept].tolist(), draft.log_probs[0, :kept].tolist())
        return builder.freeze()
    builder.insert(baseline, BASELINE)
    verifier = [baseline[0], *retained.tokens]
    if config.verifier_path != "off" and retained:
        builder.insert(verifier, VERIFIER_PATH)
    matched = 0
    for offset, block in zip(draft.offsets[1:], draft.blocks[1:], strict=True):
        sites = attachment_sites(config.attach, baseline, block, offset, rng)
        matched += bool(sites)
        for site in sites:
            builder.insert(_within(config.scope, baseline[:site] + block, baseline), offset)
        if config.verifier_path == "attach":
            builder.insert(verifier[:offset] + block, offset)
    return builder.freeze(matched)


def _within(scope: Scope, path: list[int], baseline: list[int]) -> list[int]:
    """The part of a shifted block's path that the scope keeps (paper, Table 4)."""
    if scope == "in_block":
        return path[: len(baseline)]
    if scope == "extension":
        return baseline + path[len(baseline) :]
    return path
