"""Knobs refuse what is not of their kind, and say what is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reanchor.config import DecodeConfig, ReAnchorRules, SamplingConfig
from reanchor.training.train_config import TrainConfig


@pytest.mark.parametrize(
    ("kind", "field", "value", "said"),
    [
        (DecodeConfig, "max_nodes", 1.5, "max_nodes must be a whole number or none, got 1.5"),
        (ReAnchorRules, "max_shifts", "2", "max_shifts must be a whole number or none, got '2'"),
        (DecodeConfig, "max_nodes", True, "max_nodes must be a whole number or none, got True"),
        (DecodeConfig, "graphs", "no", "graphs must be true or false, got 'no'"),
        (DecodeConfig, "carryover", 1, "carryover must be true or false or none, got 1"),
        (ReAnchorRules, "attach", None, "attach must be one of earliest, "),
        (SamplingConfig, "temperature", "0", "temperature must be a number, got '0'"),
        (SamplingConfig, "max_new_tokens", None, "max_new_tokens must be a whole number, got None"),
        (SamplingConfig, "top_k", 0.5, "top_k must be a whole number, got 0.5"),
        (TrainConfig, "lr", "fast", "lr must be a number, got 'fast'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(kind: Any, field: str, value: object, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        kind(**{field: value})


def test_whole_numbers_are_numbers_whoever_made_them() -> None:
    assert SamplingConfig(np.int64(4), temperature=1).max_new_tokens == 4
    assert DecodeConfig("reanchor", max_nodes=np.int64(4)).node_budget == 4


def test_the_usual_method_depends_on_the_device_and_on_what_is_asked():
    assert DecodeConfig().on("cpu").method == "auto" and DecodeConfig().on("cuda").method == "reanchor"
    assert DecodeConfig.of(attach="longest").on("cpu").method == "reanchor"
    assert DecodeConfig("ddtree").on("cpu").method == "ddtree"
    with pytest.raises(ValueError, match="attach 'longest' is a rule of method 'reanchor'"):
        DecodeConfig.of(method="auto", attach="longest")
    with pytest.raises(ValueError, match="use method dflash or ddtree"):
        DecodeConfig(sampling_mode="rejection")
    cases = {
        ("auto", "auto"): True,
        ("dflash", "auto"): False,
        ("dflash", "coupled"): True,
        ("auto", "exact-match"): False,
    }
    for (method, sampling_mode), races in cases.items():
        assert DecodeConfig(method, sampling_mode=sampling_mode).couples is races
