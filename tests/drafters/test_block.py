"""The batched draft over the shared cache equals each block alone, from scratch, by the plain reading."""

from __future__ import annotations

import pytest
import torch

from reanchor.core import Draft, Retained
from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.loading import load_drafter

from .oracle import block_logits
from .writer import Facts, H, V, Written, dflash, tiny_target

TARGET = tiny_target()
FULL, SLIDING = "full_attention", "sliding_attention"
MIX = {"layer_types": [SLIDING, FULL], "sliding_window": 6, "use_sliding_window": True}
CASES = {
    "full": dflash(),
    "bias": dflash(Facts(bias=True, theta=500.0, eps=1e-5)),
    "sliding": dflash(Facts(rules=((True, 6), (False, None))), **MIX),
    "wide-window": dflash(Facts(rules=((True, 64), (False, None))), **(MIX | {"sliding_window": 64})),
    "sliding-both-ways": dflash(Facts(rules=((False, 6), (False, None))), **MIX, is_causal=False),
    "narrow": dflash(
        Facts(rules=((False, 2), (False, None))), **(MIX | {"sliding_window": 2}), is_causal=False
    ),
    "causal": dflash(Facts(rules=((True, None), (True, None))), is_causal=True),
    "scaled": dflash(
        Facts(multiplier=0.7, softcap=3.0, embedding_scale=1.3),
        final_logit_softcapping=3.0,
        input_embedding_scale=1.3,
        output_multiplier=0.7,
    ),
}


@pytest.fixture(scope="module", params=CASES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Written, BlockDrafter]:
    written = CASES[request.param]
    return written, load_drafter(written.save(tmp_path_factory.mktemp("drafter")), TARGET)


def rows(count: int, written: Written, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, len(written.facts.taps) * H, generator=generator, dtype=torch.float64)


def check(draft: Draft, written: Written, features: torch.Tensor, anchor: int, retained: Retained) -> None:
    """Candidates and log-probabilities cover the whole vocabulary, so every logit is compared."""
    assert draft.candidates is not None and draft.log_probs is not None
    for row, offset in enumerate(draft.offsets):
        first = retained.tokens[offset - 1] if offset else anchor
        seen = features if not offset else torch.cat([features, retained.features[:offset]])  # type: ignore[index]
        expected = block_logits(written, TARGET, seen, first)
        assert draft.blocks[row] == [first, *expected.argmax(-1).tolist()]
        found = torch.zeros_like(expected).scatter(1, draft.candidates[row], draft.log_probs[row].double())
        torch.testing.assert_close(found, expected.log_softmax(-1), atol=2e-5, rtol=0)


@pytest.mark.parametrize("length", [1, 3, 9, 20])
def test_one_block(pair: tuple[Written, BlockDrafter], length: int) -> None:
    written, drafter = pair
    features, cache = rows(length, written, 3), drafter.new_cache()
    drafter.commit(features, cache)
    check(drafter.draft(7, Retained(), (), cache, V), written, features, 7, Retained())


@pytest.mark.parametrize("shifts", [(1,), (1, 2, 3), (3, 1), (2,)])
def test_shifted_blocks(pair: tuple[Written, BlockDrafter], shifts: tuple[int, ...]) -> None:
    written, drafter = pair
    features, retained = rows(11, written, 4), Retained((5, 6, 8), rows(3, written, 5))
    cache = drafter.new_cache()
    drafter.commit(features, cache)
    draft = drafter.draft(7, retained, shifts, cache, V)
    assert draft.offsets == (0, *shifts)
    check(draft, written, features, 7, retained)
    assert len(cache) == 11


def test_many_rounds(pair: tuple[Written, BlockDrafter]) -> None:
    """The buffer grows past its first size and what a round leaves behind never shows."""
    written, drafter = pair
    generator, cache = torch.Generator().manual_seed(6), drafter.new_cache()
    features = rows(230, written, 7)
    drafter.commit(features, cache)
    for turn in range(16):
        retained = Retained((1, 2, 3)[: turn % 4], rows(turn % 4, written, 50 + turn) if turn % 4 else None)
        draft = drafter.draft(turn, retained, range(1, turn % 4 + 1), cache, V)
        if turn % 5 == 0 or turn == 14:
            check(draft, written, features, turn, retained)
        new = rows(int(torch.randint(1, 5, (1,), generator=generator)), written, 100 + turn)
        drafter.commit(new, cache)
        features = torch.cat([features, new])
        assert len(cache) == len(features)
    assert len(features) > 256 and cache.capacity >= 512


def test_drafting_twice_gives_the_same(pair: tuple[Written, BlockDrafter]) -> None:
    written, drafter = pair
    cache, retained = drafter.new_cache(), Retained((5, 6), rows(2, written, 9))
    drafter.commit(rows(5, written, 8), cache)
    first = drafter.draft(7, retained, (1, 2), cache)
    drafter.draft(9, Retained(), (), cache)
    assert drafter.draft(7, retained, (1, 2), cache).blocks == first.blocks
    assert first.candidates is None and first.log_probs is None


def test_wrong_feature_width_names_the_taps(pair: tuple[Written, BlockDrafter]) -> None:
    with pytest.raises(ValueError, match=r"target layers \[0, 2, 4\]"):
        pair[1].commit(torch.zeros(2, H), pair[1].new_cache())
