"""The batched draft over the shared cache equals each block alone, from scratch, by the plain reading."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel

from reanchor.core import Draft, Retained
from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.load import load_drafter

from .oracle import expected_block
from .writer import DIALECTS, HD, Facts, H, V, Written, dflash, dflash_nested, tiny_target

TARGET = tiny_target().requires_grad_(False)
FULL, SLIDING = "full_attention", "sliding_attention"
MIX = {"layer_types": [SLIDING, FULL], "sliding_window": 6, "use_sliding_window": True}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def stretched(theta: float, factor: float, low: float, high: float, original: int) -> tuple[float, ...]:
    """llama3: slow pairs divided by the factor, fast ones kept, those between blended."""
    found = []
    for pair in range(HD // 2):
        plain = theta ** (-2 * pair / HD)
        turns = original * plain / (2 * math.pi)
        blend = min(max((turns - low) / (high - low), 0), 1)
        found.append(plain * (blend + (1 - blend) / factor))
    return tuple(found)


CASES = DIALECTS | {
    "rope linear": dflash(
        Facts(frequencies=tuple(10000.0 ** (-2 * pair / HD) / 4 for pair in range(HD // 2))),
        rope_scaling={"type": "linear", "factor": 4.0},
    ),
    "rope llama3": dflash(
        Facts(theta=500.0, frequencies=stretched(500.0, 8.0, 1.0, 4.0, 64)), rope_scaling=LLAMA3
    ),
    "rope dynamic, within its length": dflash(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "rope of a hybrid target": dflash_nested(
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [1, 1, 2],
            "mrope_interleaved": True,
        }
    ),
    "bias": dflash(Facts(bias=True, theta=500.0, eps=1e-5)),
    "wide window": dflash(Facts(rules=((True, 64), (False, None))), **(MIX | {"sliding_window": 64})),
    "window both ways": dflash(Facts(rules=((False, 6), (False, None))), **MIX, is_causal=False),
    "narrow window": dflash(
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


def check(
    draft: Draft,
    written: Written,
    features: torch.Tensor,
    anchor: int,
    retained: Retained,
    target: PreTrainedModel = TARGET,
) -> None:
    """Candidates and log-probabilities cover all that is scored, so every logit is compared."""
    assert draft.candidates is not None and draft.log_probs is not None
    for row, offset in enumerate(draft.offsets):
        first = retained.tokens[offset - 1] if offset else anchor
        seen = features if not offset else torch.cat([features, retained.features[:offset]])  # type: ignore[index]
        expected = expected_block(written, target, seen, first)
        assert draft.blocks[row] == [first, *expected.tokens]
        for slot, log_probs in enumerate(expected.log_probs):
            ids = draft.candidates[row, slot].tolist()
            assert set(ids) == set(log_probs)
            wanted = torch.tensor([log_probs[token] for token in ids])
            torch.testing.assert_close(draft.log_probs[row, slot], wanted.float(), atol=5e-5, rtol=0)
        if expected.confidence is None:
            assert draft.confidence is None
        else:
            assert draft.confidence is not None
            wanted = torch.tensor(expected.confidence)
            torch.testing.assert_close(draft.confidence[row], wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [1, 9, 20])
def test_one_block(pair: tuple[Written, BlockDrafter], length: int) -> None:
    written, drafter = pair
    features, cache = rows(length, written, 3), drafter.new_cache()
    drafter.commit(features, cache)
    check(drafter.draft(7, Retained(), (), cache, V), written, features, 7, Retained())


@pytest.mark.parametrize("shifts", [(1, 2, 3), (3, 1)])
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
        if turn in (0, 7, 14):
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
    with pytest.raises(ValueError, match=r"target layers \["):
        pair[1].commit(torch.zeros(2, H), pair[1].new_cache())


def test_confidence_threshold_cuts_each_block(tmp_path: Path) -> None:
    written = DIALECTS["deepspec vanilla"]
    folder = written.save(tmp_path)
    whole = load_drafter(folder, TARGET)
    retained, cache = Retained((5, 6, 8), rows(3, written, 5)), whole.new_cache()
    whole.commit(rows(11, written, 4), cache)
    every = whole.draft(7, retained, (1, 2, 3), cache)
    assert every.confidence is not None and {len(block) for block in every.blocks} == {5}
    threshold = float(every.confidence.flatten().median())
    cut = load_drafter(folder, TARGET, confidence_threshold=threshold)
    cache = cut.new_cache()
    cut.commit(rows(11, written, 4), cache)
    draft = cut.draft(7, retained, (1, 2, 3), cache)
    for block, full, sure in zip(draft.blocks, every.blocks, every.confidence.tolist(), strict=True):
        kept = next((at for at, value in enumerate(sure) if value < threshold), len(sure))
        assert block == full[: 1 + kept]
    assert len({len(block) for block in draft.blocks}) > 1


def test_temperatures_outlive_a_cast_and_are_in_no_state_dict(tmp_path: Path) -> None:
    head = load_drafter(DIALECTS["deepspec gated"].save(tmp_path), TARGET).confidence_head
    hidden, before = torch.ones(1, 4, H), torch.ones(1, 4, head.proj.in_features - H)
    expected = head.double()(hidden.double(), before.double())
    assert len(set(expected[0].tolist())) == 4 and expected.dtype is torch.float32
    exact = torch.tensor([0.1, 0.7, 1.3, 1.9])  # none of which half precision has
    head.temperatures.copy_(exact.view(torch.int32))
    assert torch.equal(head.bfloat16().float().temperatures.view(torch.float32), exact)
    assert not any("temperatures" in name for name in head.state_dict())


def test_a_borrowed_embedding_scales_as_its_target_does(tmp_path: Path) -> None:
    """Gemma's embedding module multiplies by the root of the width; the drafter's config says nothing of it."""
    config = Gemma3TextConfig(
        vocab_size=V,
        hidden_size=H,
        intermediate_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HD,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    torch.manual_seed(4)
    target = Gemma3ForCausalLM(config).double().eval().requires_grad_(False)
    scale = float(target.get_input_embeddings().embed_scale)
    assert scale == pytest.approx(H**0.5, rel=1e-3)
    written = dflash(Facts(embedding_scale=scale, softcap=3.0), final_logit_softcapping=3.0)
    drafter, retained = load_drafter(written.save(tmp_path), target), Retained((5, 6), rows(2, written, 9))
    cache = drafter.new_cache()
    drafter.commit(rows(7, written, 8), cache)
    check(drafter.draft(7, retained, (1, 2), cache, V), written, rows(7, written, 8), 7, retained, target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_another_precision_than_the_targets(dialect: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """The drafter's own tensors in `dtype`, the borrowed ends in the target's."""
    written = DIALECTS[dialect]
    folder = written.save(tmp_path)
    same, other = load_drafter(folder, TARGET), load_drafter(folder, TARGET, dtype=dtype)
    floats = {tensor.dtype for tensor in other.state_dict().values() if tensor.is_floating_point()}
    assert floats == {dtype}
    drafts = []
    for drafter in (same, other):
        cache = drafter.new_cache()
        drafter.commit(rows(9, written, 8), cache)
        drafts.append(drafter.draft(7, Retained((5, 6), rows(2, written, 9)), (1, 2), cache, 1))
    if dtype is torch.float32:
        assert drafts[0].blocks == drafts[1].blocks
    assert [len(block) for block in drafts[1].blocks] == [written.facts.proposals + 1] * 3


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_state_dict_says_what_the_checkpoint_said(dialect: str, tmp_path: Path) -> None:
    """Matrices that are one in the modules stand apart, without a copy, and go back the same way."""
    folder = DIALECTS[dialect].save(tmp_path)
    drafter, other = load_drafter(folder, TARGET), load_drafter(folder, TARGET)
    state = drafter.state_dict()
    query = state["body.layers.0.self_attn.q_proj.weight"]
    assert query.data_ptr() == drafter.body.layers[0].qkv.weight.data_ptr()
    assert not any(part in name for name in state for part in ("qkv", "gate_up", ".out.", ".down."))
    for parameter in other.parameters():
        parameter.data.zero_()
    other.load_state_dict(state)
    assert all(map(torch.equal, drafter.parameters(), other.parameters()))
    del state["body.layers.0.mlp.up_proj.weight"]
    with pytest.raises(RuntimeError, match=r"gate_proj|gate_up"):
        other.load_state_dict(state)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_proposals_race_at_their_own_places_and_by_the_targets_ids(dialect: str, tmp_path: Path) -> None:
    written = DIALECTS[dialect]
    drafter, calls = load_drafter(written.save(tmp_path), TARGET), []
    luck = torch.randn(9, V, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def couple(scores, places, ids):
        ids = torch.arange(V) if ids is None else ids
        bent = scores + 20 * luck[torch.tensor(places)].gather(-1, ids.expand(len(scores), -1))
        calls.append(
            (list(places), ids.expand_as(bent).gather(-1, bent.argmax(-1, keepdim=True))[:, 0].tolist())
        )
        return bent

    cache, offsets, proposals = drafter.new_cache(), (0, 1, 2), written.facts.proposals
    drafter.commit(rows(9, written, 8), cache)
    draft = drafter.draft(7, Retained((5, 6), rows(2, written, 9)), offsets[1:], cache, 1, couple=couple)
    said = {}
    if len(calls) == 1:  # all slots at once, block by block
        keys = [(block, slot) for block in range(3) for slot in range(proposals)]
        assert calls[0][0] == [offsets[block] + slot for block, slot in keys]
        said = dict(zip(keys, calls[0][1], strict=True))
    else:  # slot by slot
        assert len(calls) == proposals
        for slot, (places, tokens) in enumerate(calls):
            assert places == [offset + slot for offset in offsets]
            said |= {(block, slot): token for block, token in enumerate(tokens)}
    for block, tokens in enumerate(draft.blocks):
        assert tokens[1:] == [said[block, slot] for slot in range(len(tokens) - 1)]
    first = [[each[0] for each in row] for row in draft.candidates.tolist()]
    assert first == [[said[block, slot] for slot in range(proposals)] for block in range(3)]
