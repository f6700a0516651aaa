"""The numbers behind a draw: those of `torch.multinomial`, in its order, whatever is looked at ahead."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from reanchor.core import BASELINE, Verdict
from reanchor.loop import retain
from reanchor.proposal import Trie
from reanchor.sampling import Choice
from reanchor.target import TargetOutput
from reanchor.times import Times

PROMPT, SIZE = torch.tensor([1, 2]), 300
LOGITS = 3 * torch.randn(12, SIZE, generator=torch.Generator().manual_seed(0))
RULES = [TemperatureLogitsWarper(0.8), TopPLogitsWarper(0.9)]


def drawn(choice: Choice, look) -> list[int]:
    tokens = []
    for row in LOGITS:
        tokens.append(choice.after_prefix(row))
        if not choice.commit(tokens[-1]):
            look(choice)
    return tokens


LOOKS = {
    "nobody looks": lambda choice: None,
    "one looks far": lambda choice: choice.times.at(9),
    "one looks here and there": lambda choice: [choice.times.at(place) for place in (3, 0, 5)],
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("own", [True, False], ids=["own generator", "global"])
def test_draws_are_those_of_multinomial(look, own):
    generator = torch.Generator().manual_seed(5) if own else None
    torch.manual_seed(5)
    choice = Choice(PROMPT, len(LOGITS), sample=True, processors=RULES, generator=generator)
    tokens = drawn(choice, LOOKS[look])
    left = torch.rand(3, generator=generator)
    generator = torch.Generator().manual_seed(5)
    scores = choice.processors(PROMPT[None], LOGITS.clone())
    expected = [int(torch.multinomial(row.softmax(-1)[None], 1, generator=generator)) for row in scores]
    assert tokens == expected
    assert torch.equal(
        left, torch.rand(3, generator=generator)
    )  # nothing was taken that plain decoding would not take


def test_a_draft_of_the_targets_own_scores_is_what_it_draws():
    choice = Choice(PROMPT, 40, sample=True, processors=RULES, generator=torch.Generator().manual_seed(1))
    choice.commit(choice.after_prefix(LOGITS[0]))
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(2))
    whole = choice.race(LOGITS, range(12)).argmax(-1).tolist()
    some = order[choice.race(LOGITS[:, order], range(12), order).argmax(-1)].tolist()
    own = choice.at_places(LOGITS, range(12))
    assert own == whole == some == drawn(choice, LOOKS["nobody looks"])


def test_retained_tokens_are_what_the_target_goes_on_to_draw():
    """States of a rejected path, and the same scores met one token after another."""
    trie = Trie(2)
    trie.insert([2, *range(len(LOGITS) - 1)], BASELINE)
    choice = Choice(PROMPT, 40, sample=True, processors=RULES, generator=torch.Generator().manual_seed(1))
    token = choice.after_prefix(LOGITS[0])
    choice.commit(token)
    verdict = Verdict([0], [token], [token] * len(LOGITS), False)
    nodes = list(range(1, len(LOGITS)))
    retained = retain(nodes, trie.freeze(), verdict, TargetOutput(LOGITS, LOGITS), choice)
    for row, foreseen in zip(LOGITS[1:], retained.tokens, strict=True):
        assert choice.after_prefix(row) == foreseen
        choice.commit(foreseen)


def test_a_processor_with_numbers_of_its_own_lets_nobody_look_ahead():
    class Shaken(TemperatureLogitsWarper):
        def __call__(self, ids, scores):
            return scores + torch.rand(1)

    choice = Choice(PROMPT, 40, sample=True, processors=[Shaken(1.0)])
    assert not choice.foresees and Choice(PROMPT, 40, sample=True).foresees
    torch.manual_seed(3)
    tokens = drawn(choice, LOOKS["nobody looks"])
    torch.manual_seed(3)
    shaken = ((row + torch.rand(1)).softmax(-1)[None] for row in LOGITS)  # one at a time, draws between
    assert tokens == [int(torch.multinomial(chances, 1)) for chances in shaken]


def test_scores_that_are_no_numbers_are_refused():
    choice = Choice(PROMPT, 40, sample=True)
    with pytest.raises(ValueError, match="no numbers"):
        choice.after_prefix(torch.full((SIZE,), float("nan")))


def test_times_are_exponential():
    times = Times(torch.Generator().manual_seed(0), torch.device("cpu"))
    times.size = 20_000
    rows = torch.stack([times.at(place) for place in range(3)])
    assert rows.mean(1).tolist() == pytest.approx([1.0] * 3, abs=0.03) and float(rows.min()) > 0
    assert abs(float(torch.corrcoef(rows)[0, 1])) < 0.03


def test_two_decodes_that_take_turns_never_share_a_number():
    """Nor does anybody else who draws from the same generator in between."""
    torch.manual_seed(0)
    both, rows, others = [Times(None, torch.device("cpu")) for _ in range(2)], [], []
    for turn in range(12):
        times = both[turn % 2]
        times.size = SIZE
        times.at(turn % 4)
        rows.append(times.at(0))
        others.append(torch.empty(1, SIZE).exponential_()[0])
        times.advance()
    left = [times.at(place) for times in both for place in range(len(times.rows))]
    for times in both:
        times.close()
    drawn_at_last = [torch.empty(1, SIZE).exponential_()[0]]
    everything = torch.stack([*rows, *others, *left, *drawn_at_last])
    assert len(torch.unique(everything[:, 0])) == len(everything)
