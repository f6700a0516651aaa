"""The room by itself, in double precision: the solve gives what stepping gives, on every path of random trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from reanchor.recurrent import causal_convolution, definition, solve
from reanchor.recurrent.lineage import Lineage
from reanchor.recurrent.recurrence import RecurrenceProblem

SHAPES = {"one head a key": (3, 3, 8, 5), "shared keys": (2, 6, 5, 8), "square": (1, 2, 4, 4)}


def random_lineage(nodes: int, rng: np.random.Generator, chain: float = 0.3) -> Lineage:
    """Parents before children; with this chance a node continues from the one before."""
    parents = [-1] + [
        node - 1 if rng.random() < chain else int(rng.integers(node)) for node in range(1, nodes)
    ]
    sees = np.zeros((nodes, nodes), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] = sees[parent]
        sees[node, node] = True
    return Lineage.of(parents, sees)


def random_problem(
    lineage: Lineage,
    shape: tuple[int, int, int, int],
    delta: bool,
    seed: int = 0,
    fade: float = 3.0,
    dtype: torch.dtype = torch.float64,
) -> RecurrenceProblem:
    draw = torch.Generator().manual_seed(seed)
    key_heads, heads, key, value = shape
    nodes = len(lineage)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw, dtype=torch.float64).to(dtype)

    return RecurrenceProblem(
        queries=normal(nodes, key_heads, key) / key**0.5,
        keys=torch.nn.functional.normalize(normal(nodes, key_heads, key), dim=-1),
        values=normal(nodes, heads, value),
        decay=-torch.rand(nodes, heads, generator=draw, dtype=torch.float64).to(dtype) * fade,
        strength=torch.rand(nodes, heads, generator=draw, dtype=torch.float64).to(dtype) if delta else None,
        state=normal(heads, key, value),
        lineage=lineage,
    )


def path_to(lineage: Lineage, node: int) -> Tensor:
    return lineage.sees[node].nonzero()[:, 0]


@pytest.mark.parametrize("delta", [True, False], ids=["delta", "scan"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nodes", [1, 2, 17, 40])
def test_the_solve_is_the_definition(nodes, shape, delta):
    lineage = random_lineage(nodes, np.random.default_rng(nodes))
    problem = random_problem(lineage, SHAPES[shape], delta)
    outputs, kept = solve.verify(problem)
    torch.testing.assert_close(outputs, definition.verify(problem), rtol=1e-11, atol=1e-12)
    for node, state in enumerate(definition.states(problem)):
        committed = solve.commit(problem.state, kept, path_to(lineage, node))
        torch.testing.assert_close(committed, state, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("delta", [True, False], ids=["delta", "scan"])
def test_a_wrong_mask_would_be_seen(delta):
    """A tree taken for a chain gives other outputs: what the test above looks at can differ."""
    lineage = random_lineage(17, np.random.default_rng(3))
    chain = replace(lineage, sees=torch.ones(17, 17).tril().bool(), memo={})
    problem = random_problem(lineage, SHAPES["square"], delta)
    wrong, _ = solve.verify(replace(problem, lineage=chain))
    assert (wrong - definition.verify(problem)).abs().max() > 1e-2


@pytest.mark.parametrize("delta", [True, False], ids=["delta", "scan"])
def test_what_siblings_hold_changes_nothing(delta):
    """Not a bit of it, while it is finite."""
    lineage = random_lineage(24, np.random.default_rng(5))
    problem = random_problem(lineage, SHAPES["shared keys"], delta)
    outputs, kept = solve.verify(problem)
    for node in (7, 16, 23):
        path = path_to(lineage, node)
        others = torch.ones(24, dtype=torch.bool)
        others[path] = False

        def poisoned(rows: Tensor, others: Tensor = others) -> Tensor:
            return torch.where(others.view(-1, *[1] * (rows.dim() - 1)), torch.full_like(rows, 1e9), rows)

        bad = replace(
            problem,
            queries=poisoned(problem.queries),
            keys=poisoned(problem.keys),
            values=poisoned(problem.values),
            decay=-poisoned(-problem.decay),
            strength=None if problem.strength is None else poisoned(problem.strength),
        )
        assert not torch.equal(bad.keys, problem.keys)
        found, held = solve.verify(bad)
        assert torch.equal(found[path], outputs[path])
        want = solve.commit(problem.state, kept, path)
        assert torch.equal(solve.commit(problem.state, held, path), want)


@pytest.mark.parametrize("fade", [0.0, 1e-3, 60.0])
def test_decays_of_every_strength(fade):
    """In single precision too, far down a chain, where sums of decays are large and differences of them small."""
    lineage = random_lineage(48, np.random.default_rng(1), chain=0.97)
    problem = random_problem(lineage, SHAPES["square"], True, fade=fade, dtype=torch.float32)
    problem.decay[:4] = -900.0 if fade < 1 else 0.0
    outputs, _ = solve.verify(problem)
    assert outputs.dtype == torch.float32
    torch.testing.assert_close(outputs, definition.verify(problem), rtol=2e-5, atol=2e-6)


def test_states_are_single_precision_at_least():
    lineage = random_lineage(5, np.random.default_rng(1))
    problem = random_problem(lineage, SHAPES["square"], True, dtype=torch.bfloat16)
    outputs, kept = solve.verify(problem)
    assert outputs.dtype == kept.writes.dtype == torch.float32
    assert solve.commit(problem.state, kept, torch.tensor([0])).dtype == torch.float32


@pytest.mark.parametrize("width", [1, 2, 3, 4, 9])
def test_windows_go_up_the_ancestors_and_into_the_committed_rows(width):
    draw = torch.Generator().manual_seed(2)
    lineage = random_lineage(30, np.random.default_rng(8), chain=0.7)
    rows, committed = (torch.randn(size, generator=draw, dtype=torch.float64) for size in ((30, 6), (6, 9)))
    weight, bias = torch.randn(6, width, generator=draw, dtype=torch.float64), torch.arange(6.0).double()
    outputs = causal_convolution.verify(rows, weight, bias, committed, lineage)
    for node in range(30):
        path = path_to(lineage, node)
        text = torch.cat([committed, rows[path].T], dim=1)  # [C, 9 + L]
        want = (text[:, -width:] * weight).sum(1) + bias
        torch.testing.assert_close(outputs[node], want, rtol=1e-12, atol=1e-12)
        assert torch.equal(causal_convolution.commit(committed, rows, path), text[:, -9:])


def test_a_lineage_is_checked_and_its_facts_are_made_once():
    with pytest.raises(ValueError, match="parents must stand before"):
        Lineage.of([-1, 2, 0], np.eye(3, dtype=bool))
    with pytest.raises(ValueError, match="do not fit"):
        Lineage.of([-1, 0], np.eye(3, dtype=bool))
    lineage = random_lineage(5, np.random.default_rng(0))
    assert lineage.windows(4) is lineage.windows(4) and lineage.on(torch.device("cpu")) is lineage
