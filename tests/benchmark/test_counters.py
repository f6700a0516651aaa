"""The paper's counts on drafts and rounds whose right answer is known by hand."""

from __future__ import annotations

import pytest
import torch

from reanchor.benchmark.ablations import ABLATIONS, ablation_methods
from reanchor.benchmark.counters import Agreement, Alignment, CountingDrafter, Earliest
from reanchor.config import DecodeConfig, SamplingConfig
from reanchor.core import Draft, Retained, Round, Tree, VerifyResult
from reanchor.drafters.base import NoDrafter
from tests.benchmark.scripted import Letters, Oracle
from tests.proposal.proposers import assemble
from tests.tiny import ScriptedDrafter, greedy, tiny_target


class Given(NoDrafter):
    """A drafter that drafts what it is told."""

    def __init__(self, draft: Draft) -> None:
        self.given = draft

    def draft(self, *_args: object) -> Draft:
        return self.given


def seen(counter_type, blocks: dict[int, list[int]], truth: list[int], attach="all", method="reanchor"):
    """The counts of one round: `blocks` by offset, verified against what the target says."""
    draft = Draft(tuple(blocks), list(blocks.values()))
    observed = CountingDrafter(Given(draft))
    observed.draft()
    retained = Retained(tuple(block[0] for offset, block in blocks.items() if offset))
    tree = assemble(draft, retained, DecodeConfig.of(method=method, attach=attach), 99)
    counter = counter_type(observed)
    counter.see(step_of(tree, truth))
    return counter.take()


def step_of(tree: Tree, truth: list[int]) -> Round:
    """The target says truth[depth] after every node, whatever the branch."""
    path = [0]
    while (child := tree.children.get((path[-1], truth[tree.depths[path[-1]]]))) is not None:
        path.append(child)
    choices = [truth[depth] for depth in tree.depths]
    result = VerifyResult(path, [choices[node] for node in path], choices, False)
    return Round(result.tokens, tree, result, 1, 0, False)


def test_alignment():
    blocks = {
        0: [1, 2, 3, 2],
        1: [2, 9, 9, 9],  # at its own offset 1, and at 3: multiple
        2: [2, 9, 9, 9],  # not at 2, but at 1 and 3: shifted only and multiple
        3: [7, 9, 9, 9],  # nowhere
    }
    assert seen(Alignment, blocks, [2, 3, 2, 5, 5, 5, 5, 5]) == {
        "blocks": 3, "matched": 2, "shifted_only": 1, "multiple": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    "block, truth, eligible, won",
    [
        ([2, 5, 6], [2, 5, 6, 8, 8, 8], 1, 1),  # the earliest site, 1, is the good one
        ([2, 5, 6], [2, 3, 2, 5, 6, 8], 1, 0),  # the later site, 3, is
        ([2, 5, 6], [2, 8, 8, 8, 8, 8], 1, 1),  # both as good as the baseline: a tie counts
        ([2, 5, 6], [9, 8, 8, 8, 8, 8], 1, 1),  # nothing accepted by anyone: a tie as well
        ([3, 5, 6], [2, 9, 9, 9, 9, 9], 1, 1),
        ([7, 5, 6], [2, 3, 2, 8, 8, 8], 0, 0),  # matches nowhere: no group
    ],
)
def test_earliest(block, truth, eligible, won):
    counts = seen(Earliest, {0: [1, 2, 3, 2], 1: block}, truth)
    assert (counts["eligible"], counts["won"]) == (eligible, won)
    assert counts["groups"] == (block[0] != 7)


def test_a_group_that_another_offset_beats_is_not_eligible():
    blocks = {0: [1, 2, 3, 2], 1: [2, 3, 2, 6], 2: [3, 9, 9, 9]}
    assert seen(Earliest, blocks, [2, 3, 2, 6, 8, 8, 8]) == {"groups": 2, "eligible": 1, "won": 1}


def test_agreement():
    # the target says 2 4 5 5: the draft 2 is accepted, 3 rejected, and of 5 and 6 behind it one agrees
    counts = seen(Agreement, {0: [1, 2, 3, 5, 6]}, [2, 4, 5, 5, 7], method="dflash")
    assert counts == {"after_rejection": 2, "agreeing": 1}
    assert seen(Agreement, {0: [1, 2, 3]}, [2, 3, 8], method="dflash") == {
        "after_rejection": 0,
        "agreeing": 0,
    }


def test_a_round_that_drafted_nothing_counts_nothing():
    observed = CountingDrafter(Given(Draft((0,), [[1]])))
    tree = assemble(Draft((0,), [[1]]), Retained(), DecodeConfig("reanchor"), 9)
    counter = Alignment(observed)
    counter.see(step_of(tree, [2]))
    assert counter.take() == dict.fromkeys(Alignment.names, 0)


# A drafter whose baseline is right for one token and whose shifted blocks, which start with that token, are right to
# their end. A round without retained states commits 2 tokens and leaves three states; the next commits what its scope
# lets it: 6 with the whole block of five, 5 inside the block of the baseline, 2 when only what is beyond may differ.
# All of that was accepted, so nothing is left for the round after.
ROUNDS = {
    "DFlash": [2] * 12, "+ shifted blocks": [2, 6] * 3, "+ token matching": [2, 6] * 3,
    "token matching, retention longest": [2, 6] * 3, "fixed": [2, 6] * 3, "random": [2, 6] * 3,
    "longest": [2, 6] * 3, "earliest": [2, 6] * 3, "full": [2, 6] * 3, "in-block only": [2, 5] * 3 + [2, 1],
    "extension only": [2] * 12, "reanchor": [2, 6] * 3, "all sites": [2, 6] * 3,
}  # fmt: skip
COUNTS = {
    "reanchor": {"blocks": 9, "matched": 9, "shifted_only": 6, "multiple": 0},
    "all sites": {"groups": 9, "eligible": 9, "won": 9},
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_a_scripted_pair_gives_the_rounds_and_counts_that_follow_from_its_script(name):
    model, prompt = tiny_target(), [3, 14, 15, 9, 2, 6]
    truth = greedy(model, torch.tensor(prompt), 60)
    drafter = ScriptedDrafter(prompt + truth, "decoy")
    measured = {
        method.name: method.decode(prompt, SamplingConfig(25))
        for method in ablation_methods(ABLATIONS[name], model, drafter, DecodeConfig("reanchor"))
    }
    for variant, outcome in measured.items():
        assert outcome.tokens == truth[:25]
        if variant in ROUNDS:
            assert [each.tokens for each in outcome.rounds] == ROUNDS[variant], variant
        if variant in COUNTS:
            assert outcome.counts == COUNTS[variant]
    if name == "components":  # its own tokens along the rejected path cost nothing and can only help
        assert measured["+ verifier path"].passes <= measured["+ token matching"].passes


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_variant_gives_the_targets_own_tokens(name):
    """And a chain that misses every fourth position accepts what can be counted by hand."""
    model = tiny_target()
    oracle = Oracle(model)
    ids = Letters()("alphabet").input_ids
    oracle.prompt(ids)
    truth = greedy(model, torch.tensor(ids), 20)
    for method in ablation_methods(ABLATIONS[name], model, oracle, DecodeConfig("reanchor")):
        outcome = method.decode(ids, SamplingConfig(20))
        assert outcome.tokens == truth
        if method.name == "DFlash":
            assert [each.tokens for each in outcome.rounds] == chain_rounds(len(ids), 20)


def chain_rounds(prompt: int, new: int) -> list[int]:
    """Tokens a round of a chain of three drafts that is wrong at multiples of four."""
    rounds, anchor, left = [], prompt, new - 1
    while left:
        drafts = range(anchor + 1, anchor + 1 + min(3, left - 1))
        right = next((count for count, place in enumerate(drafts) if place % 4 == 0), len(drafts))
        rounds.append(right + 1)
        anchor, left = anchor + right + 1, left - right - 1
    return rounds
