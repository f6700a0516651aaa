"""Properties of matching and of the tree, on lists of integers."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from reanchor.config import DecodeConfig
from reanchor.core import Draft, Retained, Tree, VerifyResult
from reanchor.proposal import TreeBuilder
from reanchor.proposal.matching import choose_site, sites
from reanchor.proposal.retention import rejected_path
from tests.proposal.proposers import assemble

tokens = st.integers(0, 3)  # few, so that matches are common
blocks = st.lists(st.lists(tokens, min_size=4, max_size=4), min_size=1, max_size=5)
RNG = random.Random(0)


def draft_of(rows: list[list[int]]) -> tuple[Draft, Retained]:
    return Draft(tuple(range(len(rows))), rows), Retained(tuple(row[0] for row in rows[1:]))


def path_tokens(tree: Tree, path: list[int]) -> list[int]:
    return [tree.tokens[node] for node in path]


def sees(tree: Tree, node: int) -> set[int]:
    seen = set()
    while node >= 0:
        seen.add(node)
        node = tree.parents[node]
    return seen


@given(
    blocks,
    st.sampled_from(["earliest", "fixed", "longest", "random"]),
    st.sampled_from(["off", "path", "attach"]),
)
def test_a_tree_is_a_tree(rows, attach, verifier_path):
    draft, retained = draft_of(rows)
    tree = assemble(
        draft,
        retained,
        DecodeConfig.of(method="reanchor", attach=attach, verifier_path=verifier_path),
        99,
    )
    assert tree.parents[0] == -1 and all(parent < node for node, parent in enumerate(tree.parents))
    edges = list(zip(tree.parents[1:], tree.tokens[1:], strict=True))
    assert len(set(edges)) == len(edges)
    assert tree.children == {edge: node for node, edge in enumerate(edges, start=1)}
    ancestry = tree.ancestry()
    for node in range(len(tree)):
        assert set(ancestry[node].nonzero()[0]) == sees(tree, node)
        assert tree.depths[node] == len(sees(tree, node)) - 1
    for path in tree.paths:
        assert path[0] == 0
        assert all(tree.parents[b] == a for a, b in zip(path, path[1:], strict=False))


@given(blocks)
def test_every_attached_path_is_in_the_trie_once(rows):
    draft, retained = draft_of(rows)
    tree = assemble(draft, retained, DecodeConfig("reanchor"), 99)
    expected = [rows[0]]
    for row in rows[1:]:
        if row[0] in rows[0]:
            expected.append(rows[0][: rows[0].index(row[0])] + row)
    assert [path_tokens(tree, path) for path in tree.paths] == expected
    assert tree.matched == len(expected) - 1
    nodes = {tuple(path[: k + 1]) for path in expected for k in range(len(path))}
    assert len(tree) == len(nodes)


@given(blocks, st.integers(1, 12), st.integers(0, 6))
def test_budget_and_depth_are_kept_and_the_baseline_comes_first(rows, budget, depth):
    draft, retained = draft_of(rows)
    config = DecodeConfig.of(method="reanchor", max_nodes=budget, verifier_path="attach")
    tree = assemble(draft, retained, config, depth)
    assert len(tree) <= budget and max(tree.depths) <= depth
    assert path_tokens(tree, tree.paths[0]) == rows[0][: min(budget, depth + 1)]
    free = assemble(draft, retained, DecodeConfig.of(method="reanchor", verifier_path="attach"), depth)
    assert tree.tokens == free.tokens[: len(tree)]


@given(st.lists(tokens, min_size=4, max_size=4), st.lists(tokens, min_size=4, max_size=4), st.integers(1, 5))
def test_rules_choose_the_site_they_say(baseline, block, offset):
    found = sites(baseline, block)
    assert found == [t for t in range(len(baseline)) if baseline[t] == block[0]]
    earliest = choose_site("earliest", baseline, block, offset, RNG)
    assert earliest == (min(found) if found else None)
    fixed = choose_site("fixed", baseline, block, offset, RNG)
    assert fixed == (offset if offset in found else None)
    assert fixed is None or earliest is not None  # fixed matches are among earliest's
    longest = choose_site("longest", baseline, block, offset, RNG)

    def run(t: int) -> int:
        pairs = list(zip(baseline[t:], block, strict=False))
        return next((k for k, (a, b) in enumerate(pairs) if a != b), len(pairs))

    if found:
        assert run(longest) == max(map(run, found)) and longest == min(
            t for t in found if run(t) == run(longest)
        )
        assert choose_site("random", baseline, block, offset, random.Random(3)) in found


@given(blocks)
def test_scopes(rows):
    draft, retained = draft_of(rows)
    K = len(rows[0]) - 1
    inside = assemble(draft, retained, DecodeConfig.of(method="reanchor", scope="in_block"), 99)
    beyond = assemble(draft, retained, DecodeConfig.of(method="reanchor", scope="extension"), 99)
    full = assemble(draft, retained, DecodeConfig("reanchor"), 99)
    assert max(inside.depths) <= K
    assert sum(depth <= K for depth in full.depths) == len(inside)
    for node in range(1, len(beyond)):
        assert beyond.origins[node] == 0 if beyond.depths[node] <= K else beyond.origins[node] > 0


@given(blocks, st.data())
@settings(max_examples=60)
def test_retention_takes_the_path_it_says(rows, data):
    draft, retained = draft_of(rows)
    tree = assemble(draft, retained, DecodeConfig.of(method="reanchor", verifier_path="attach"), 99)
    last = data.draw(st.integers(0, len(tree) - 1))
    accepted = sorted(sees(tree, last))
    result = VerifyResult(accepted, [0] * len(accepted), [0] * len(tree), False)
    beyond = [p for p in tree.paths if p[: len(accepted)] == accepted and len(p) > len(accepted)]
    first = rejected_path(tree, result, "first")
    longest = rejected_path(tree, result, "longest")
    if not beyond:
        assert first == longest == []
    else:
        assert first == beyond[0][len(accepted) :]
        assert len(longest) == max(len(p) for p in beyond) - len(accepted)
        assert accepted + longest in beyond


def test_the_papers_example():
    """g(1) joins at the first 'b', not at its own offset; the extension goes past the block."""
    a, b, c, d, e = range(5)
    draft = Draft((0, 1, 2), [[a, c, b, d], [b, d, e, e], [e, a, a, a]])
    tree = assemble(draft, Retained((b, e)), DecodeConfig("reanchor"), 99)
    assert [path_tokens(tree, path) for path in tree.paths] == [[a, c, b, d], [a, c, b, d, e, e]]
    assert tree.matched == 1 and tree.origins == [-1, 0, 0, 0, 1, 1]
    fixed = assemble(draft, Retained((b, e)), DecodeConfig.of(method="reanchor", attach="fixed"), 99)
    assert len(fixed) == 4 and fixed.matched == 0


def test_a_path_cut_at_the_budget_is_still_a_path():
    builder = TreeBuilder(7, max_nodes=3)
    builder.insert([7, 1, 2, 3], 0)
    builder.insert([7, 1, 4], 1)
    assert builder.paths == [[0, 1, 2], [0, 1]] and builder.tokens == [7, 1, 2]
