"""Rejection sampling over trees of drawn tokens is exact: several depths, several siblings, broken rules that fail."""

from __future__ import annotations

import random

import pytest
import torch

import reanchor.proposal.ddtree
import reanchor.verification
from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.core import BASELINE, Draft, Tree, VerifyResult
from reanchor.proposal import TreeBuilder, drawn_tree
from reanchor.proposal.drawn_tree import SiblingAcceptance, grow_by_draws
from reanchor.sampling import TokenSelector
from tests.chances import DEPTH, PROMPT, VOCAB, exact, p_value, processors, tiny_model
from tests.tiny import ScriptedDrafter

NODES = 10


@pytest.fixture(scope="module")
def model():
    return tiny_model()


class Dealer(ScriptedDrafter):
    """Fixed scores at every position, unlike the target's; what is drawn is drawn by who decodes."""

    tap_layers = (0,)

    def __init__(self, sureness: float = 1.5) -> None:
        super().__init__([0] * 99, "right", block_size=4, vocab=VOCAB)
        sureness /= drawn_tree.COOLING
        self.scores = sureness * torch.randn(
            self.proposals, VOCAB, generator=torch.Generator().manual_seed(5)
        )

    def draft(self, anchor, retained, shifts, cache, top_k=0, draw=None) -> Draft:
        tokens, distribution = draw(self.scores)
        return Draft((0,), [[anchor, *tokens[:, 0].tolist()]], distribution=distribution)


def counted(model, rules, sureness=1.5, draws=1200, limit=DEPTH + 1):
    """Counts of the first DEPTH tokens, and how often a second or later sibling was accepted."""
    torch.manual_seed(1)
    counts, later = torch.zeros([VOCAB] * DEPTH, dtype=torch.float64), 0
    config = DecodeConfig("ddtree", sampling_mode="rejection", max_nodes=NODES)
    decoder = SpeculativeDecoder(model, Dealer(sureness), config)
    for _ in range(draws):
        selector = TokenSelector(PROMPT, limit, sample=True, processors=processors(rules))
        steps = list(decoder.decode(PROMPT, selector=selector))
        counts[tuple([token for step in steps for token in step.tokens][:DEPTH])] += 1
        for step in steps:
            first = {parent: node for node, parent in reversed(list(enumerate(step.tree.parents)))}
            later += sum(node not in first.values() for node in step.result.path[1:])
    return counts, later


@pytest.mark.parametrize("rules_of, sureness", [("t1", 1.5), ("t0.7-top-p", 0.8), ("t1.3-top-k", 1.5)])
def test_the_distribution_is_the_targets(model, rules_of, sureness):
    counts, later = counted(model, rules_of, sureness)
    assert later > 100, "hardly any sibling but the first was accepted, so nothing was tried"
    assert p_value(counts, exact(model, processors(rules_of))) > 1e-3


def put_back(offered, _token):
    return offered


def not_renormalised(wanted, offered):
    rest = (wanted - offered).clamp(min=0)
    return rest if float(rest.sum()) > 0 else wanted


def likeliest_first(builder, candidates, chances, acceptance, rng):
    """Siblings by probability, not drawn."""
    grow_by_draws(builder, candidates, chances, acceptance, first_of_all)


class First(random.Random):
    def choices(self, population, weights=None, **_more):
        return [max(zip(weights, population, strict=True))[1]]


first_of_all = First()


def peeping(builder, candidates, chances, acceptance, rng):
    """Whether a token becomes a node depends on which token it is."""
    grow_by_draws(builder, candidates, chances, acceptance, Peeping(rng.random()))


class Peeping(random.Random):
    def choices(self, population, weights=None, **more):
        tokens = [super(Peeping, self).choices(population, weights)[0] for _ in range(2)]
        return [min(tokens)]


BROKEN = {
    "residual of drawing with replacement": (reanchor.verification, "remove_token", put_back),
    "residual not renormalised": (reanchor.verification, "residual", not_renormalised),
    "not drawn": (reanchor.proposal.ddtree, "grow_by_draws", likeliest_first),
    "a shape that knows the token": (reanchor.proposal.ddtree, "grow_by_draws", peeping),
}


def test_the_last_token_allowed_is_drawn_anew(model):
    """It has no draft, and its numbers are none that a draft was made of."""
    assert p_value(counted(model, "t1", limit=DEPTH)[0], exact(model, processors("t1"))) > 1e-3


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_rule_fails_the_same_test(model, monkeypatch, broken):
    monkeypatch.setattr(*BROKEN[broken])
    assert p_value(counted(model, "t1")[0], exact(model, processors("t1"))) < 1e-5


def test_places_are_chosen_before_their_tokens():
    """Another luck of the draws, the same shape: here no certainty depends on a drawn token."""
    candidates, chances = (
        [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
        [[0.5, 0.3, 0.2], [0.9, 0.06, 0.04], [0.4, 0.3, 0.3]],
    )
    shapes = set()
    for seed in range(20):
        builder = TreeBuilder(0, 12, 3)
        grow_by_draws(builder, candidates, chances, SiblingAcceptance(), random.Random(seed))
        assert len(set(zip(builder.parents, builder.tokens, strict=True))) == len(builder.tokens) == 12
        shapes.add(tuple(builder.parents))
    assert len(shapes) == 1


def test_acceptance_is_learnt_by_certainty_and_rank():
    rng, acceptance = random.Random(0), SiblingAcceptance()
    for _ in range(4000):
        acceptance.learn(0.9, 0, rng.random() < 0.8)
        acceptance.learn(0.2, 1, rng.random() < 0.1)
    assert acceptance.of(0.95, 0) == pytest.approx(0.8, abs=0.15)
    assert acceptance.of(0.25, 1) == pytest.approx(0.1, abs=0.15)
    assert acceptance.of(0.4, 0) == drawn_tree.PRIOR[2][0]


def test_the_accepted_token_that_ends_a_decode_counts_as_accepted():
    tree = Tree([0, 5, 6], [-1, 0, 0], [0, 1, 1], [BASELINE] * 3, [])
    acceptance = SiblingAcceptance()
    acceptance.learn_all(tree, VerifyResult([0], [6], [6], stopped=True), [[0.9, 0.1]])
    first, second = drawn_tree.PRIOR[4][:2]
    assert acceptance.of(0.9, 0) < first and acceptance.of(0.9, 1) > second


def test_a_seed_repeats_and_decodes_differ(model):
    decoder = SpeculativeDecoder(
        model, Dealer(), DecodeConfig("ddtree", sampling_mode="rejection", max_nodes=6)
    )

    def trees(seed):
        sampling = SamplingConfig(max_new_tokens=12, temperature=1.0, seed=seed)
        return [step.tree.tokens for step in decoder.decode(PROMPT, sampling)]

    assert trees(3) == trees(3) and trees(3) != trees(4)


def test_an_urn_that_is_emptied_leaves_the_targets_own_draw():
    offered = torch.tensor([0.0, 1.0, 0.0])
    assert reanchor.verification.remove_token(offered, 1).tolist() == [0, 0, 0]
    rest = reanchor.verification.residual(torch.tensor([0.5, 0.3, 0.2]), offered)
    torch.testing.assert_close(rest, torch.tensor([5 / 7, 0, 2 / 7]))


@pytest.mark.parametrize(
    "method, reason", [("reanchor", "several distributions"), ("auto", "without a draw")]
)
def test_methods_that_do_not_draw_are_refused_with_the_reason(method, reason):
    with pytest.raises(ValueError, match=f"{reason}.*use method dflash or ddtree"):
        DecodeConfig(method, sampling_mode="rejection")
