"""The matrix product against torch's own, in every case a caller may bring."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reanchor.linear import apply, linear, matrix_of
from reanchor.packing import pack, packable, packed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (3,), (4,), (7,), (64,), (3, 5)])
@pytest.mark.parametrize("biased", [False, True])
def test_equals_torch(dtype, shape, biased):
    torch.manual_seed(0)
    rows, weight = torch.randn(*shape, 24).to(dtype), torch.randn(40, 24).to(dtype)[3:37]
    bias = torch.randn(34).to(dtype) if biased else None
    expected = F.linear(rows, weight, bias)
    with torch.no_grad():
        torch.testing.assert_close(linear(rows, weight, bias), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (7,), (64,), (3, 5)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_packed_matrix_multiplies_as_its_rows(dtype, shape, biased):
    torch.manual_seed(0)
    parts = [torch.randn(11, 24).to(dtype), torch.randn(23, 24).to(dtype)]
    if not all(map(packable, parts)):
        pytest.skip("nothing is packed here")
    rows, bias = torch.randn(*shape, 24).to(dtype), torch.randn(34).to(dtype) if biased else None
    with torch.no_grad():
        torch.testing.assert_close(linear(rows, pack(parts), bias), F.linear(rows, torch.cat(parts), bias))


def test_what_is_packed_is_what_the_parameters_are():
    module, rows = nn.Linear(8, 4), torch.randn(3, 8)
    if not packable(module.weight):
        pytest.skip("nothing is packed here")
    with torch.no_grad():
        assert pack([module.weight]) is packed([module.weight]) is matrix_of(module)[0]
        torch.testing.assert_close(apply(module, rows), module(rows))
        module.weight.add_(1.0)
        assert packed([module.weight]) is None and matrix_of(module)[0] is module.weight
        pack([module.weight])
    assert matrix_of(module)[0] is module.weight  # a gradient needs it
    module.weight.data = torch.zeros(4, 8)
    assert packed([module.weight]) is None


def test_strided_rows():
    rows, weight = torch.randn(6, 48)[:, ::2], torch.randn(8, 24)
    with torch.no_grad():
        torch.testing.assert_close(linear(rows, weight), F.linear(rows, weight))


def test_weights_that_are_trained_have_gradients():
    module = nn.Linear(8, 4)
    linear(torch.randn(3, 8), module.weight, module.bias).sum().backward()
    assert module.weight.grad is not None and module.bias.grad is not None


class Doubled(nn.Linear):
    def forward(self, rows):
        return 2 * super().forward(rows)


def test_whatever_a_module_does_beyond_its_product_is_done():
    rows, plain = torch.randn(3, 8), nn.Linear(8, 4)
    other = Doubled(8, 4)
    with torch.no_grad():
        torch.testing.assert_close(apply(plain, rows), plain(rows))
        torch.testing.assert_close(apply(other, rows), other(rows))
        plain.register_forward_hook(lambda module, given, output: output + 1)
        torch.testing.assert_close(apply(plain, rows), F.linear(rows, plain.weight, plain.bias) + 1)
