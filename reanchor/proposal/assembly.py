"""From a draft to the tree of one round: attach, merge, cut (method, steps 2 and 3)."""

from __future__ import annotations

import random

from reanchor.config import DecodeConfig, Scope
from reanchor.core import BASELINE, VERIFIER_PATH, Draft, Retained, Tree
from reanchor.proposal.matching import choose_site
from reanchor.proposal.trie import Trie


def assemble(
    draft: Draft, retained: Retained, config: DecodeConfig, max_depth: int, rng: random.Random
) -> Tree:
    """The trie of the baseline, the verifier path if asked for, and every shifted block that finds a place.

    max_depth: deepest node worth verifying, the tokens still allowed less the bonus.
    """
    baseline = draft.blocks[0]
    trie = Trie(baseline[0], config.max_nodes, max_depth)
    trie.insert(baseline, BASELINE)
    verifier = [baseline[0], *retained.tokens]
    if config.verifier_path != "off" and retained:
        trie.insert(verifier, VERIFIER_PATH)
    matched = 0
    for offset, block in zip(draft.offsets[1:], draft.blocks[1:], strict=True):
        site = choose_site(config.attach, baseline, block, offset, rng)
        if site is not None:
            matched += 1
            trie.insert(_within(config.scope, baseline[:site] + block, baseline), offset)
        if config.verifier_path == "attach":
            trie.insert(verifier[:offset] + block, offset)
    return trie.freeze(matched)


def _within(scope: Scope, path: list[int], baseline: list[int]) -> list[int]:
    """The part of a shifted block's path that the scope keeps (paper, Table 4)."""
    if scope == "in_block":
        return path[: len(baseline)]
    if scope == "extension":
        return baseline + path[len(baseline) :]
    return path
