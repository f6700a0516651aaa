"""Attention packages and kernels that are there and do not work are passed by, with the reason."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from reanchor.attention import flash, table
from reanchor.attention.table import Attention

from .problems import problem as problem_of
from .problems import random_trie


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder for packages of our making, ahead of all others."""
    for name in ("flash_attn", "flash_attn_interface", "flash_attn_3", "flash_attn_3.flash_attn_interface"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    flash.external.cache_clear()
    yield tmp_path
    flash.external.cache_clear()


def test_flash_attention_4_alone_is_not_2(packages):
    (packages / "flash_attn" / "cute").mkdir(parents=True)
    (packages / "flash_attn" / "cute" / "__init__.py").write_text("")
    assert flash.external() is None


def test_an_install_that_cannot_be_imported_is_none(packages):
    (packages / "flash_attn.py").write_text("raise ImportError('undefined symbol')")
    (packages / "flash_attn_interface.py").write_text("raise OSError('libcudart.so.13')")
    assert flash.external() is None


def test_both_layouts_of_flash_attention_3(packages):
    (packages / "flash_attn_3").mkdir()
    (packages / "flash_attn_3" / "flash_attn_interface.py").write_text("def flash_attn_with_kvcache(): ...")
    assert flash.external() == "flash_attn_3.flash_attn_interface"
    flash.external.cache_clear()
    (packages / "flash_attn_interface.py").write_text("def flash_attn_with_kvcache(): ...")
    assert flash.external() == "flash_attn_interface"


@pytest.mark.parametrize("fault", ["OutOfResources", "CompilationError"])
def test_a_kernel_that_cannot_be_built_declines(fault, monkeypatch):
    error = type(fault, (Exception,), {})("out of resource: shared memory, required: 147456")
    problem = problem_of(*random_trie(6, np.random.default_rng(0)), 9)
    usual = Attention()
    expected = usual.attend(problem)
    first = usual.used[0]

    class Broken:
        name = first

        @staticmethod
        def decline(_problem):
            return None

        @staticmethod
        def attend(_problem):
            raise error

    monkeypatch.setitem(table.BACKENDS, first, Broken)
    attention = Attention()
    assert attention.attend(problem).shape == expected.shape and first not in attention.used
    assert fault in attention.refusals[first][0]
    with pytest.raises(ValueError, match=f"attention '{first}' declined: .*{fault}"):
        Attention(first).attend(problem)
