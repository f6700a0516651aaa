"""The loss by hand, where its gradient goes, and what a new drafter starts as."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from reanchor.drafters.checkpoint import Checkpoint
from reanchor.drafters.load import load_drafter
from reanchor.drafters.recognition import recognise
from reanchor.training.anchors import EpochOrder, rng_of, slot_weights
from reanchor.training.drafter_loss import BatchBuilder, DrafterLoss
from reanchor.training.drafter_shape import DrafterShape
from reanchor.training.initialization import init_drafter
from reanchor.training.jobs import apply_freeze
from reanchor.training.objective import LossVocabulary, acceptance, block_loss, refuse_untrainable, scores
from reanchor.training.train_config import TrainConfig
from reanchor.training.trainer import rate
from tests.drafters import writer
from tests.training.tiny import drafter_for, recorded, teacher_of

MODEL = writer.tiny_target().requires_grad_(False)
RESPONSE = recorded(MODEL)
IDS = torch.tensor(RESPONSE.ids)
ALL = LossVocabulary(writer.V, None)


@pytest.fixture
def drafter(tmp_path):
    drafter = drafter_for(tmp_path / "drafter", MODEL)
    apply_freeze(drafter)
    return drafter


def test_slots_weigh_less_the_later_they_come():
    assert slot_weights(3, 4.0) == pytest.approx([1.0, math.exp(-1 / 4), math.exp(-2 / 4)])
    assert [TrainConfig().decay(size) for size in (16, 10, 8, 6)] == [7.0, 5.0, 4.0, 3.0]
    assert TrainConfig(gamma=2.5).decay(8) == 2.5


def test_the_loss_by_hand(drafter):
    anchors = torch.tensor([8, 11])
    hidden = torch.randn(2, drafter.proposals, writer.H, generator=torch.Generator().manual_seed(1)).double()
    found = block_loss(drafter, hidden, IDS, anchors, ALL, gamma=2.0)
    total, norm = 0.0, sum(math.exp(-slot / 2) for slot in range(drafter.proposals))
    for block, anchor in enumerate(anchors.tolist()):
        for slot in range(drafter.proposals):
            logits = drafter.score(hidden[block, slot])
            label = RESPONSE.ids[anchor + 1 + slot]
            total -= math.exp(-slot / 2) / norm / 2 * float(logits.log_softmax(-1)[label])
            assert bool(found.hits[block, slot]) == (int(logits.argmax()) == label)
    assert float(found.loss.detach()) == pytest.approx(total, rel=1e-6)


def test_a_softmax_over_seen_tokens_is_the_same_among_them(drafter):
    seen = torch.tensor(sorted(set(RESPONSE.response_ids)))
    anchors = torch.tensor([8, 11])
    hidden = torch.randn(2, drafter.proposals, writer.H, generator=torch.Generator().manual_seed(1)).double()
    logits = drafter.score(hidden)[..., seen]
    places = anchors[:, None] + 1 + torch.arange(drafter.proposals)
    labels = torch.searchsorted(seen, IDS[places])
    entropy = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), reduction="none"
    )
    weights = torch.tensor(slot_weights(drafter.proposals, 3.0))
    expected = (entropy.view_as(labels) * weights / weights.sum() / 2).sum()
    found = block_loss(drafter, hidden, IDS, anchors, LossVocabulary(writer.V, seen), gamma=3.0)
    torch.testing.assert_close(found.loss.float(), expected, atol=1e-6, rtol=1e-6)


def test_acceptance_ends_at_the_first_miss():
    hits = torch.tensor([[True, True, False, True], [False, True, True, True], [True] * 4])
    assert acceptance(hits).tolist() == [3, 1, 5]


def test_gradients_go_through_the_second_draft_alone(drafter, monkeypatch):
    lesson = BatchBuilder(drafter, teacher_of(MODEL, drafter), TrainConfig(anchors=12), carryover=True)
    recording = []
    own = drafter.propose
    monkeypatch.setattr(
        drafter, "propose", lambda *given: (recording.append(torch.is_grad_enabled()), own(*given))[1]
    )
    material = lesson.prepare(RESPONSE, rng_of(3))
    assert recording == [False]
    assert not any(tensor.requires_grad for tensor in (material.features, material.carried.features))
    loss, _ = DrafterLoss(drafter, ALL, 4.0)(material)
    loss.backward()
    assert all(parameter.grad is not None for parameter in drafter.parameters())
    assert float(drafter.carryover_embedding.grad.abs().sum()) > 0
    assert all(parameter.grad is None for parameter in MODEL.parameters())


def test_the_embedding_learns_from_carried_rows_only(drafter):
    lesson = BatchBuilder(drafter, teacher_of(MODEL, drafter), TrainConfig(anchors=12), carryover=True)
    material = replace(lesson.prepare(RESPONSE, rng_of(3)), carried=None)
    loss, _ = DrafterLoss(drafter, ALL, 4.0)(material)
    loss.backward()
    assert float(drafter.carryover_embedding.grad.abs().sum()) == 0  # a gradient, for distributed wrappers


def test_a_response_without_a_shifted_block_weighs_nothing(drafter):
    short = RESPONSE.cut(len(RESPONSE.prompt_ids) + drafter.proposals + 1)
    lesson = BatchBuilder(drafter, teacher_of(MODEL, drafter), TrainConfig(anchors=12), carryover=True)
    material = lesson.prepare(short, rng_of(3))
    assert material.weight == 0 and material.dropped == 1 and material.carried is None
    loss, _ = DrafterLoss(drafter, ALL, 4.0)(material)
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in drafter.parameters())


def test_every_response_once_an_epoch():
    order = EpochOrder(10, 4, seed=3)
    places = [place for step in range(5) for place in order.at(step)]
    assert sorted(places[:10]) == sorted(places[10:20]) == list(range(10)) and places[:10] != places[10:20]
    assert EpochOrder(10, 4, seed=3).at(4) == order.at(4) != EpochOrder(10, 4, seed=4).at(4)


def test_the_rate_rises_and_falls():
    config = TrainConfig(lr=1.0, warmup=0.1)
    rates = [rate(step, 100, config) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10:] == sorted(rates[10:], reverse=True) and rates[55] == pytest.approx(0.5, abs=0.01)
    assert rate(99, 100, replace(config, schedule="constant")) == 1.0


@pytest.mark.parametrize("rank", [0, 4])
def test_a_new_drafter_starts_as_copies_of_the_targets_layers(tmp_path, rank):
    model = writer.tiny_target().requires_grad_(False)
    init_drafter(
        tmp_path,
        None,
        DrafterShape(block_size=4, layers="1,3", taps="0,2", mask_token=95, markov_rank=rank),
        model,
        True,
    )
    drafter = load_drafter(tmp_path, model)
    assert drafter.tap_layers == (0, 2) and drafter.block_size == 4 and drafter.carryover
    assert drafter.proposals == 3 and (drafter.config.markov is None) is (rank == 0)
    copied = drafter.state_dict()["body.layers.1.mlp.up_proj.weight"]
    torch.testing.assert_close(copied, model.model.layers[3].mlp.up_proj.weight, atol=1e-6, rtol=1e-6)
    assert not drafter.carryover_embedding.any()


@pytest.mark.parametrize(
    "shape, reason",
    [
        ({"mask_token": None}, "needs --mask-token"),
        ({"mask_token": 96}, "vocabulary is 96"),
        ({"taps": "0,6"}, "outside the target's layers, 0 to 5"),
        ({"layers": "a"}, "separated by commas"),
    ],
)
def test_bad_shapes_are_refused(tmp_path, shape, reason):
    with pytest.raises(ValueError, match=reason):
        init_drafter(
            tmp_path, None, DrafterShape(**({"block_size": 4, "mask_token": 95} | shape)), MODEL, False
        )


@pytest.mark.parametrize(
    "dialect",
    ["dflash prefixed", "dflash renamed", "deepspec dflash", "deepspec gemma", "speculators dspark"],
)
def test_any_dialect_is_continued(tmp_path, dialect):
    """A start that was written differs from its checkpoint by what was added."""
    folder = writer.DIALECTS[dialect].save(tmp_path / "theirs")
    init_drafter(tmp_path / "start", str(folder), DrafterShape(), MODEL, True)
    theirs, ours = (recognise(Checkpoint(each)).config for each in (folder, tmp_path / "start"))
    assert ours == replace(theirs, carryover=True)


@pytest.mark.parametrize("dialect", ["dflash", "deepspec dflash", "speculators dflash"])
def test_a_markov_head_joins_any_dialect(tmp_path, dialect):
    folder = writer.DIALECTS[dialect].save(tmp_path / "theirs")
    init_drafter(tmp_path / "start", str(folder), DrafterShape(markov_rank=3), MODEL, False)
    theirs, ours = (recognise(Checkpoint(each)).config for each in (folder, tmp_path / "start"))
    assert ours.markov.rank == 3 and ours.confidence is not None
    assert (ours.shifted, ours.block_size, ours.tap_layers) == (
        theirs.shifted,
        theirs.block_size,
        theirs.tap_layers,
    )


@pytest.mark.parametrize(
    "shape, reason",
    [
        ({"block_size": 8}, "block_size 4, not 8"),
        ({"taps": "1,2"}, "taps 0,2,4, not 1,2"),
        ({"mask_token": 3}, "mask_token 95, not 3"),
        ({"layers": "1"}, "2 layers, not 1"),
    ],
)
def test_a_checkpoint_keeps_its_shape(tmp_path, shape, reason):
    folder = writer.DIALECTS["dflash"].save(tmp_path / "theirs")
    with pytest.raises(ValueError, match=f"{reason}.*keeps its shape"):
        init_drafter(tmp_path / "start", str(folder), DrafterShape(**shape), MODEL, False)
    same = DrafterShape(4, "1,2", "0,2,4", 95)
    init_drafter(tmp_path / "start", str(folder), same, MODEL, False)


def test_the_heads_bias_counts_among_seen_tokens(drafter):
    torch.manual_seed(2)
    head = torch.nn.Linear(writer.H, writer.V, dtype=torch.float64)
    drafter.borrow(drafter.borrowed[0], head)
    hidden = torch.randn(2, drafter.proposals, writer.H, dtype=torch.float64)
    seen, previous = torch.tensor([3, 8, 40]), torch.zeros(2, drafter.proposals, dtype=torch.long)
    found = scores(drafter, hidden, previous, LossVocabulary(writer.V, seen))
    torch.testing.assert_close(found, drafter.score(hidden)[..., seen].float())


def test_only_what_the_loss_knows_is_trained(tmp_path):
    written = writer.domino(shifted=True, prefix=1)
    other = load_drafter(written.save(tmp_path), MODEL)
    with pytest.raises(ValueError, match="domino drafter cannot be trained here"):
        refuse_untrainable(other)


def test_markov_terms_by_hand(tmp_path):
    model = writer.tiny_target().requires_grad_(False)
    init_drafter(
        tmp_path,
        None,
        DrafterShape(block_size=4, layers="1", taps="0,2", mask_token=95, markov_rank=3),
        model,
        False,
    )
    drafter = load_drafter(tmp_path, model, dtype=torch.float64)
    torch.manual_seed(0)
    drafter.markov_head.markov_w2.weight.normal_()
    drafter.confidence_head.proj.weight.normal_()
    lesson = BatchBuilder(drafter, teacher_of(model, drafter), TrainConfig(anchors=2), carryover=False)
    material = lesson.prepare(RESPONSE, rng_of(5))
    hidden = torch.randn(2, 3, writer.H, dtype=torch.float64)
    found = block_loss(drafter, hidden, IDS, material.anchors, ALL, 2.0, material.logits)
    truth = model(IDS[None]).logits[0].float().softmax(-1)
    total, norm = 0.0, sum(math.exp(-slot / 2) for slot in range(3))
    for block, anchor in enumerate(material.anchors.tolist()):
        for slot in range(3):
            before = drafter.markov_head.markov_w1(IDS[anchor + slot])
            logits = drafter.score(hidden[block, slot]) + drafter.markov_head.markov_w2(before)
            ours = logits.float().softmax(-1)
            distance = float((ours - truth[anchor + slot]).abs().sum()) / 2
            sure = float(
                torch.sigmoid(drafter.confidence_head.proj(torch.cat([hidden[block, slot], before])))
            )
            entropy = -math.log(float(ours[RESPONSE.ids[anchor + slot + 1]]))
            error = -((1 - distance) * math.log(sure) + distance * math.log(1 - sure))
            total += math.exp(-slot / 2) / norm / 2 * (0.1 * entropy + 0.9 * distance + error)
    assert float(found.loss) == pytest.approx(total, rel=1e-4)
