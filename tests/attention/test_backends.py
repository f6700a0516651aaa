"""The definition against a loop over scores, and sdpa against the definition."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from reanchor.attention import reference, sdpa
from reanchor.attention.problem import Problem, Visibility
from reanchor.attention.table import BACKENDS, Attention, pick
from tests.attention.problems import BOUND, blocks, error, in_double, problem, random_trie


def one_score_at_a_time(
    given: Problem, sees: np.ndarray, depths: list[int], tail_depths: list[int]
) -> torch.Tensor:
    """The rule of problem.py, spelled out."""
    length, groups = int(given.sees.length), given.groups
    out = torch.zeros_like(given.queries)
    positions = [*range(length), *(length + depth for depth in tail_depths)]
    for query, head in np.ndindex(*given.queries.shape[:2]):
        weights = {}
        for row, position in enumerate(positions):
            hidden = row >= length and not sees[query, row - length]
            if given.window is not None:
                hidden |= abs(length + depths[query] - position) >= given.window
            if not hidden:
                score = float(given.queries[query, head] @ given.keys[head // groups, row]) * given.scale
                if given.softcap is not None:
                    score = given.softcap * math.tanh(score / given.softcap)
                weights[row] = math.exp(score)
        total = sum(weights.values())
        for row, weight in weights.items():
            out[query, head] += weight / total * given.values[head // groups, row]
    return out


RULES = [{}, {"window": 4}, {"softcap": 2.0}, {"window": 9, "softcap": 2.0}]


@pytest.mark.parametrize("length", [0, 1, 13])
@pytest.mark.parametrize("rule", RULES)
def test_the_definition_on_tries(length, rule):
    sees, depths = random_trie(9, np.random.default_rng(1), reach=3)
    given = problem(sees, depths, length, dtype=torch.float64, **rule)
    exact = one_score_at_a_time(given, sees, depths, depths)
    assert error(reference.attend(given), exact) < BOUND[torch.float64]


@pytest.mark.parametrize("rule", RULES)
def test_the_definition_on_draft_blocks(rule):
    sees, depths, tail_depths = blocks(retained=3, size=4)
    given = problem(sees, depths, 11, dtype=torch.float64, tail_depths=tail_depths, **rule)
    exact = one_score_at_a_time(given, sees, depths, tail_depths)
    assert error(reference.attend(given), exact) < BOUND[torch.float64]


LENGTHS = [0, 1, 31, 100, sdpa.SPLIT_FROM - 1, sdpa.SPLIT_FROM, 700]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("nodes", [1, 7, 33])
@pytest.mark.parametrize("heads", [(3, 3), (6, 2), (8, 1)])
@pytest.mark.parametrize("window", [None, 20])
def test_sdpa_equals_the_definition(length, nodes, heads, window):
    sees, depths = random_trie(nodes, np.random.default_rng(nodes))
    given = problem(sees, depths, length, heads, dtype=torch.float64, window=window)
    assert sdpa.decline(given) is None
    assert error(sdpa.attend(given), reference.attend(given)) < BOUND[torch.float64]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [100, 700])
def test_lower_precision_stays_within_its_bound(dtype, length):
    sees, depths = random_trie(64, np.random.default_rng(0))
    given = problem(sees, depths, length, (4, 2), 64, dtype)
    exact = reference.attend(in_double(given))
    assert error(reference.attend(given), exact) < BOUND[dtype]
    assert error(sdpa.attend(given), exact) < BOUND[dtype]


@pytest.mark.parametrize("length", [0, 40, 600])
@pytest.mark.parametrize("window", [None, 30])
def test_a_tail_of_many_words(length, window):
    """16 blocks of 16 over 15 retained rows: 271 tail rows."""
    sees, depths, tail_depths = blocks(retained=15, size=16)
    given = problem(sees, depths, length, dtype=torch.float64, tail_depths=tail_depths, window=window)
    assert given.sees.words.shape == (256, 9)
    assert error(sdpa.attend(given), reference.attend(given)) < BOUND[torch.float64]


@pytest.mark.parametrize("name", ["reference", "sdpa"])
@pytest.mark.parametrize("window", [None, 20])
def test_padding_to_a_bucket_changes_nothing(name, window):
    """Padding nodes see themselves only; the real nodes' output stays the same."""
    sees, depths = random_trie(11, np.random.default_rng(2))
    given = problem(sees, depths, 50, dtype=torch.float64, window=window)
    padded = np.eye(16, dtype=bool)
    padded[:11, :11] = sees
    bigger = Visibility.pack(padded, [*depths, *[0] * 5], 50)
    grown = replace(given, queries=torch.cat([given.queries, given.queries[:5]]), sees=bigger)
    for buffer in (grown.keys, grown.values):
        buffer[:, 61:66] = 3.0
    attend = BACKENDS[name].attend
    assert torch.allclose(attend(grown)[:11], attend(given), rtol=1e-13, atol=1e-14)


def test_words_hold_the_visibility():
    sees, depths = random_trie(70, np.random.default_rng(3))
    visible = Visibility.pack(sees, depths, 5)
    assert visible.words.shape == (70, 3) and visible.words.dtype == torch.int32
    assert np.array_equal(visible.tail_mask().numpy(), sees)
    assert visible.length.tolist() == [5] and visible.depths.tolist() == depths
    with pytest.raises(ValueError, match="depths do not fit"):
        Visibility.pack(sees, depths[:-1], 5)


def test_visibility_moves_with_the_layers():
    visible = Visibility.pack(*random_trie(7, np.random.default_rng(3)), 5)
    assert visible.on(torch.device("cpu")) is visible
    moved = visible.on(torch.device("meta"))
    assert moved is visible.on(torch.device("meta")) and moved.host_length == 5
    assert {each.device.type for each in (moved.length, moved.words, moved.depths, moved.tail_depths)} == {
        "meta"
    }


def test_auto_passes_over_what_declines_and_says_why():
    sees, depths = random_trie(7, np.random.default_rng(0))
    chosen = pick(problem(sees, depths, 3, dtype=torch.float64))
    assert chosen.backend.name == "sdpa"
    assert list(chosen.refusals) == ["triton", "flash"] and all(chosen.refusals.values())
    capped = pick(problem(sees, depths, 3, softcap=5.0))
    assert capped.backend.name == "reference" and "soft cap" in capped.refusals["sdpa"]


def test_a_named_backend_is_taken_or_refused():
    sees, depths = random_trie(7, np.random.default_rng(0))
    given = problem(sees, depths, 3, softcap=5.0)
    assert pick(given, "reference").backend.name == "reference"
    with pytest.raises(ValueError, match="'sdpa' declined: .*soft cap.*'auto'"):
        pick(given, "sdpa")
    with pytest.raises(ValueError, match="must be one of auto, triton, flash, sdpa, reference, got 'eager'"):
        pick(given, "eager")


def test_attention_reports_what_it_used_and_what_declined():
    sees, depths = random_trie(7, np.random.default_rng(0))
    attention = Attention()
    plain, capped = problem(sees, depths, 3), problem(sees, depths, 3, softcap=5.0)
    assert torch.equal(attention.attend(plain), sdpa.attend(plain))
    assert torch.equal(attention.attend(capped), reference.attend(capped))
    assert attention.used == ("sdpa", "reference")
    assert set(attention.refusals) == {"triton", "flash", "sdpa"}
    with pytest.raises(ValueError, match="'sdpa' declined"):
        Attention("sdpa").attend(capped)


def test_a_length_only_the_device_knows_is_not_asked_for():
    sees, depths = random_trie(3, np.random.default_rng(0))
    given = problem(sees, depths, 3)
    on_device = replace(given.sees, length=given.sees.length.to("meta"), host_length=None)
    for name in ("sdpa", "reference"):
        assert "length on the host" in str(BACKENDS[name].decline(replace(given, sees=on_device)))
