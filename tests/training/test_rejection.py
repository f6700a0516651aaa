"""Rejection sampling over the drafter's distribution is exact, whatever the drafter and whatever it carries over."""

from __future__ import annotations

import pytest
import torch

import reanchor.loop
import reanchor.verification
from reanchor import DecodeConfig, SpeculativeDecoder
from reanchor.core import Retained
from reanchor.drafters.load import load_drafter
from reanchor.sampling import TokenSelector
from reanchor.training.drafter_shape import DrafterShape
from reanchor.training.initialization import init_drafter
from tests.chances import DEPTH, PROMPT, VOCAB, exact, p_value, processors, tiny_model
from tests.drafters import writer

TARGET = writer.tiny_target().requires_grad_(False)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def drafter_of(folder, model, rank, carryover):
    """A drafter made of the target's own layer, so that it knows something and not all."""
    shape = DrafterShape(block_size=3, layers="0", taps="0", mask_token=0, markov_rank=rank)
    init_drafter(folder, None, shape, model, carryover)
    drafter = load_drafter(folder, model)
    generator = torch.Generator().manual_seed(4)
    if carryover:
        drafter.carryover_embedding.data.normal_(generator=generator)
    if rank:
        drafter.markov_head.markov_w2.weight.data.normal_(generator=generator)
    return drafter


def counted(model, drafter, rules, draws=700, limit=DEPTH + 1):
    torch.manual_seed(1)
    counts, accepted = torch.zeros([VOCAB] * DEPTH, dtype=torch.float64), 0
    config = DecodeConfig("dflash", sampling_mode="rejection")
    decoder = SpeculativeDecoder(model, drafter, config)
    for _ in range(draws):
        selector = TokenSelector(PROMPT, limit, sample=True, processors=processors(rules))
        steps = list(decoder.decode(PROMPT, selector=selector))
        counts[tuple([token for step in steps for token in step.tokens][:DEPTH])] += 1
        accepted += sum(step.accepted for step in steps)
    return counts, accepted


@pytest.mark.parametrize(
    "rules, rank, carryover", [("t1", 0, True), ("t0.7-top-p", 2, True), ("t1", 2, False)]
)
def test_the_distribution_is_the_targets(model, tmp_path, rules, rank, carryover):
    drafter = drafter_of(tmp_path, model, rank, carryover)
    counts, accepted = counted(model, drafter, rules)
    assert accepted > 200, "nothing was ever accepted, so nothing was tried"
    assert p_value(counts, exact(model, processors(rules))) > 1e-3


def test_the_last_token_allowed_is_drawn_anew(model, tmp_path):
    counts, _ = counted(model, drafter_of(tmp_path, model, 2, False), "t1", limit=DEPTH)
    assert p_value(counts, exact(model, processors("t1"))) > 1e-3


@pytest.mark.parametrize("broken", ["residual", "acceptance"])
def test_a_broken_rule_fails_the_same_test(model, tmp_path, monkeypatch, broken):
    drafter = drafter_of(tmp_path, model, 2, True)
    if broken == "residual":  # draws after a rejection from the target's whole distribution
        monkeypatch.setattr(reanchor.verification, "residual", lambda wanted, _offered: wanted)
    else:  # accepts more than it may
        monkeypatch.setattr(TokenSelector, "chance", lambda self: 0.5 * float(torch.rand(())))
    counts, _ = counted(model, drafter, "t1")
    assert p_value(counts, exact(model, processors("t1"))) < 1e-6


def test_the_rest_by_hand():
    wanted, offered = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.6, 0.3])
    torch.testing.assert_close(reanchor.verification.residual(wanted, offered), torch.tensor([1.0, 0.0, 0.0]))
    assert torch.equal(reanchor.verification.residual(wanted, wanted), wanted)


@pytest.mark.parametrize("dialect", writer.DIALECTS)
def test_every_family_says_what_it_drew_from(tmp_path, dialect):
    """Drawing the best for sure gives the greedy draft and all its probability."""
    drafter = load_drafter(writer.DIALECTS[dialect].save(tmp_path), TARGET)
    cache = drafter.new_cache()
    drafter.commit(torch.randn(6, drafter.body.fc.in_features, dtype=torch.float64), cache)

    def best(scores):
        column = scores.argmax(-1, keepdim=True)
        return column, torch.zeros_like(scores).scatter_(-1, column, 1.0)

    greedy = drafter.draft(7, Retained(), (), cache)
    drawn = drafter.draft(7, Retained(), (), cache, draw=best)
    assert greedy.distribution is None and drawn.blocks == greedy.blocks
    assert drawn.distribution.shape == (drafter.proposals, writer.V)
    assert drawn.distribution.argmax(-1).tolist() == drawn.blocks[0][1:]
    assert torch.equal(
        drawn.distribution.sum(-1), torch.ones(drafter.proposals, dtype=drawn.distribution.dtype)
    )


def test_processors_that_read_the_text_are_refused(model, tmp_path):
    decoder = SpeculativeDecoder(
        model, drafter_of(tmp_path, model, 0, False), DecodeConfig("dflash", sampling_mode="rejection")
    )
    selector = TokenSelector(PROMPT, 4, sample=True, processors=processors("penalty"))
    with pytest.raises(ValueError, match="reads the text.*use sampling_mode 'exact-match'"):
        list(decoder.decode(PROMPT, selector=selector))


CARRIERS = {
    "chain": DecodeConfig("dflash", carryover=True, sampling_mode="exact-match"),
    "shifts": DecodeConfig.of(
        method="reanchor", carryover=True, carryover_shifted=True, sampling_mode="exact-match"
    ),
    "tree": DecodeConfig("ddtree", carryover=True, sampling_mode="exact-match", max_nodes=3),
    "drawn tree": DecodeConfig("ddtree", carryover=True, sampling_mode="rejection", max_nodes=3),
    "coupled": DecodeConfig.of(method="auto", carryover=True, carryover_shifted=True, max_nodes=2),
}


@pytest.mark.parametrize("config", CARRIERS.values(), ids=CARRIERS)
def test_carried_rows_leave_every_rule_its_distribution(model, tmp_path, config):
    drafter = drafter_of(tmp_path, model, 2, True)
    torch.manual_seed(1)
    counts, carried = torch.zeros([VOCAB] * DEPTH, dtype=torch.float64), 0
    decoder = SpeculativeDecoder(model, drafter, config)
    for _ in range(500):
        selector = TokenSelector(PROMPT, DEPTH + 1, sample=True, processors=processors("t1"))
        steps = list(decoder.decode(PROMPT, selector=selector))
        counts[tuple([token for step in steps for token in step.tokens][:DEPTH])] += 1
        carried += sum(step.retained for step in steps if step.drafted)
    assert carried > 100, "hardly anything was carried over, so nothing was tried"
    assert p_value(counts, exact(model, processors("t1"))) > 1e-3


def test_a_choice_swayed_by_the_draft_fails_the_same_test(model, tmp_path, monkeypatch):
    """What the target draws must not hear of what was proposed."""
    own = reanchor.loop.verify

    def swayed(tree, logits, selector, *more):
        logits = logits.clone()
        for node, token in tree.children:
            logits[node, token] += 1.0
        return own(tree, logits, selector, *more)

    monkeypatch.setattr(reanchor.loop, "verify", swayed)
    with pytest.raises(AssertionError, match="assert 0.0 >|assert [0-9.]+e-"):
        test_carried_rows_leave_every_rule_its_distribution(model, tmp_path, CARRIERS["chain"])
