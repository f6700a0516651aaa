"""The numbers behind a draw: those of `torch.multinomial`, in its order, whatever is looked at ahead."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from reanchor.core import BASELINE, Retained, VerifyResult
from reanchor.decode_state import DecodeState
from reanchor.drafting import predicted_states
from reanchor.noise import SamplingNoise
from reanchor.proposal import TreeBuilder
from reanchor.sampling import TokenSelector
from reanchor.target import TargetOutput

PROMPT, SIZE = torch.tensor([1, 2]), 300
LOGITS = 3 * torch.randn(12, SIZE, generator=torch.Generator().manual_seed(0))
RULES = [TemperatureLogitsWarper(0.8), TopPLogitsWarper(0.9)]


def coupled(selector: TokenSelector) -> DecodeState:
    """The state of a decode whose drafts know the noise; nothing else of it is read."""
    return DecodeState(None, None, None, selector, "coupled", 0, Retained(), False)


def drawn(selector: TokenSelector, look) -> list[int]:
    tokens = []
    for row in LOGITS:
        tokens.append(selector.select_next(row))
        if not selector.commit(tokens[-1]):
            look(selector)
    return tokens


LOOKS = {
    "nobody looks": lambda selector: None,
    "one looks far": lambda selector: selector.noise.row(9),
    "one looks here and there": lambda selector: [selector.noise.row(place) for place in (3, 0, 5)],
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("own", [True, False], ids=["own generator", "global"])
def test_draws_are_those_of_multinomial(look, own):
    generator = torch.Generator().manual_seed(5) if own else None
    torch.manual_seed(5)
    selector = TokenSelector(PROMPT, len(LOGITS), sample=True, processors=RULES, generator=generator)
    tokens = drawn(selector, LOOKS[look])
    left = torch.rand(3, generator=generator)
    generator = torch.Generator().manual_seed(5)
    scores = selector.processors(PROMPT[None], LOGITS.clone())
    expected = [int(torch.multinomial(row.softmax(-1)[None], 1, generator=generator)) for row in scores]
    assert tokens == expected
    assert torch.equal(
        left, torch.rand(3, generator=generator)
    )  # nothing was taken that plain decoding would not take


def test_a_draft_of_the_targets_own_scores_is_what_it_draws():
    selector = TokenSelector(
        PROMPT, 40, sample=True, processors=RULES, generator=torch.Generator().manual_seed(1)
    )
    selector.commit(selector.select_next(LOGITS[0]))
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(2))
    whole = selector.couple(LOGITS, range(12)).argmax(-1).tolist()
    some = order[selector.couple(LOGITS[:, order], range(12), order).argmax(-1)].tolist()
    own = selector.peek(LOGITS, range(12))
    assert own == whole == some == drawn(selector, LOOKS["nobody looks"])


def test_retained_tokens_are_what_the_target_goes_on_to_draw():
    """States of a rejected path, and the same scores met one token after another."""
    builder = TreeBuilder(2)
    builder.insert([2, *range(len(LOGITS) - 1)], BASELINE)
    selector = TokenSelector(
        PROMPT, 40, sample=True, processors=RULES, generator=torch.Generator().manual_seed(1)
    )
    token = selector.select_next(LOGITS[0])
    selector.commit(token)
    result = VerifyResult([0], [token], [token] * len(LOGITS), False)
    nodes = list(range(1, len(LOGITS)))
    retained = predicted_states(
        nodes, builder.freeze(), result, TargetOutput(LOGITS, LOGITS), coupled(selector)
    )
    for row, foreseen in zip(LOGITS[1:], retained.tokens, strict=True):
        assert selector.select_next(row) == foreseen
        selector.commit(foreseen)


def test_a_processor_with_numbers_of_its_own_lets_nobody_look_ahead():
    class Shaken(TemperatureLogitsWarper):
        def __call__(self, ids, scores):
            return scores + torch.rand(1)

    selector = TokenSelector(PROMPT, 40, sample=True, processors=[Shaken(1.0)])
    assert not selector.noise_is_predictable and TokenSelector(PROMPT, 40, sample=True).noise_is_predictable
    torch.manual_seed(3)
    tokens = drawn(selector, LOOKS["nobody looks"])
    torch.manual_seed(3)
    shaken = ((row + torch.rand(1)).softmax(-1)[None] for row in LOGITS)  # one at a time, draws between
    assert tokens == [int(torch.multinomial(chances, 1)) for chances in shaken]


def test_scores_that_are_no_numbers_are_refused():
    selector = TokenSelector(PROMPT, 40, sample=True)
    with pytest.raises(ValueError, match="no numbers"):
        selector.select_next(torch.full((SIZE,), float("nan")))


def test_times_are_exponential():
    times = SamplingNoise(torch.Generator().manual_seed(0), torch.device("cpu"))
    times.size = 20_000
    rows = torch.stack([times.row(place) for place in range(3)])
    assert rows.mean(1).tolist() == pytest.approx([1.0] * 3, abs=0.03) and float(rows.min()) > 0
    assert abs(float(torch.corrcoef(rows)[0, 1])) < 0.03


def test_two_decodes_that_take_turns_never_share_a_number():
    """Nor does anybody else who draws from the same generator in between."""
    torch.manual_seed(0)
    both, rows, others = [SamplingNoise(None, torch.device("cpu")) for _ in range(2)], [], []
    for turn in range(12):
        times = both[turn % 2]
        times.size = SIZE
        times.row(turn % 4)
        rows.append(times.row(0))
        others.append(torch.empty(1, SIZE).exponential_()[0])
        times.advance()
    left = [times.row(place) for times in both for place in range(len(times.rows))]
    for times in both:
        times.restore_unused()
    drawn_at_last = [torch.empty(1, SIZE).exponential_()[0]]
    everything = torch.stack([*rows, *others, *left, *drawn_at_last])
    assert len(torch.unique(everything[:, 0])) == len(everything)
