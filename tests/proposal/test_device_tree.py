"""The device's trees, walks and retained paths are the host's, on random drafts."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reanchor.config import DecodeConfig, SamplingConfig
from reanchor.core import Draft, Retained
from reanchor.proposal.device_tree import accept_on_device, assemble_on_device, rejected_on_device, to_host
from reanchor.proposal.retention import rejected_path
from reanchor.sampling import token_selector
from reanchor.verification import verify
from tests.proposal.proposers import assemble


@st.composite
def rounds(draw):
    """A draft over few tokens, so that blocks match and merge, and the target's choices."""
    proposals = draw(st.integers(1, 6))
    blocks = draw(st.integers(1, 6))
    vocabulary = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**32 - 1))
    numbers = random.Random(seed)
    cut = [draw(st.integers(1, proposals + 1)) for _ in range(blocks)]
    rows = [[numbers.randrange(vocabulary) for _ in range(proposals + 1)] for _ in range(blocks)]
    nodes = draw(st.integers(1, 40))
    max_depth = draw(st.integers(0, 2 * proposals + 1))
    choices = [numbers.randrange(vocabulary) for _ in range(nodes)]
    return rows, cut, draw(st.integers(0, 2)), nodes, max_depth, choices


@pytest.mark.parametrize("attach", ["earliest", "fixed"])
@pytest.mark.parametrize("retention", ["first", "longest"])
@settings(deadline=None, max_examples=150)
@given(case=rounds())
def test_a_round_on_the_device_is_the_host_s(attach, retention, case):
    rows, cut, missing, nodes, max_depth, choices = case
    config = DecodeConfig.of(method="reanchor", attach=attach, retention=retention, max_nodes=nodes)
    draft = Draft(tuple(range(len(rows))), [row[:length] for row, length in zip(rows, cut, strict=True)])
    on_host = assemble(draft, Retained(), config, max_depth)

    absent = [[7] * len(rows[0])] * missing  # rows of a batch padded to more blocks than there are
    tree = assemble_on_device(
        torch.tensor([*rows, *absent]),
        torch.tensor([*cut, *[0] * missing]),
        torch.tensor([max_depth]),
        nodes,
        attach,
    )
    assert to_host(tree) == on_host

    count = len(on_host)
    sees = np.eye(nodes, dtype=bool)
    sees[:count, :count] = on_host.ancestry()
    words = tree.words.numpy().view(np.uint32)
    assert words.shape == (nodes, -(-nodes // 32))
    assert np.array_equal(np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :nodes], sees)
    assert tree.tokens[count:].eq(rows[0][0]).all() and tree.depths[count:].eq(0).all()

    chosen = torch.tensor(choices)
    logits = torch.nn.functional.one_hot(chosen[:count], 8).float()
    selector = token_selector(SamplingConfig(max_new_tokens=1000), torch.tensor([0]), ())
    expected = verify(on_host, logits, selector)
    result = accept_on_device(tree, chosen)
    accepted = int(result.count)
    assert result.path[:accepted].tolist() == expected.path
    assert result.tokens[:accepted].tolist() == expected.tokens
    assert result.path[accepted:].tolist() == list(range(accepted, len(result.path)))

    left, many = rejected_on_device(tree, result, retention)
    assert left[: int(many)].tolist() == rejected_path(on_host, expected, retention)


def test_rules_of_the_host_alone_are_refused():
    blocks, one = torch.zeros(1, 3, dtype=torch.long), torch.ones(1, dtype=torch.long)
    with pytest.raises(ValueError, match="'longest' is the host's; on the device there are earliest, fixed"):
        assemble_on_device(blocks, one, one, 8, "longest")
