"""Costs are measured once for a pair on a machine, and remembered."""

from __future__ import annotations

import json

import pytest
import torch

import reanchor.costs
from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.costs import costs_from
from reanchor.proposal.costs import Costs
from tests.tiny import ScriptedDrafter, tiny_target


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.undo()  # of the suite's own place
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "reanchor" / "costs.json"


def decoder(family: str = "qwen3", **knobs) -> SpeculativeDecoder:
    return SpeculativeDecoder(tiny_target(family), ScriptedDrafter([1] * 99), DecodeConfig("auto", **knobs))


def test_measured_once_for_a_pair(file, monkeypatch):
    first = decoder().costs()
    (key,) = json.loads(file.read_text())
    assert "Qwen3ForCausalLM" in key and "ScriptedDrafter" in key and "float32" in key
    assert list(first.curves["verify"]) == [1, 2, 4, 5, 8, 16, 32, 64]
    assert list(first.curves["draft"]) == [1, 2, 4, 5]
    assert list(json.loads(file.read_text())[key]) == ["64", "438"]  # of the 512 positions there are
    assert list(first.slopes["verify"]) == [1, 8, 64] and min(first.slopes["verify"].values()) >= 0
    assert first.measured == 64
    assert all(0 < seconds < 5 for curve in first.curves.values() for seconds in curve.values())
    monkeypatch.setattr(reanchor.costs, "measure", None)
    assert decoder().costs().curves == first.curves
    with pytest.raises(TypeError):  # another pair is measured anew
        decoder("llama").costs()


def test_what_an_older_version_kept_is_measured_anew(file):
    costs = decoder().costs()
    (key,) = json.loads(file.read_text())
    file.write_text(json.dumps({key: {"verify": costs.curves["verify"], "draft": costs.curves["draft"]}}))
    decoder().costs()
    assert set(json.loads(file.read_text())[key]) == {"64", "438"}


def test_growth_is_per_token_of_context():
    near = {"verify": {1: 1.0, 2: 1.5, 4: 2.0}, "draft": {1: 0.5}}
    costs = costs_from(near, {"verify": {1: 2.0, 4: 1.0}, "draft": {1: 1.5}}, 1000)
    assert costs.slopes == {"verify": {1: 0.001, 4: 0.0}, "draft": {1: 0.001}}
    assert not costs_from(near, near, 0).slopes  # the target has no room for another context


def test_a_broken_or_unwritable_file_is_measured_anew(file):
    file.parent.mkdir()
    file.write_text("{not json")
    assert decoder().costs() is not None and len(json.loads(file.read_text())) == 1
    file.unlink()
    file.parent.rmdir()
    file.parent.write_text("a file where the folder should be")
    assert decoder().costs() is not None


def test_rounds_correct_the_costs(monkeypatch):
    seen: list[Costs] = []
    real = reanchor.costs.watched

    def spy(stage, costs, clock):
        seen.append(costs)
        return real(stage, costs, clock)

    monkeypatch.setattr(reanchor.decoder, "watched", spy)
    monkeypatch.setattr(reanchor.decoder, "costs_of", lambda *_: Costs({1: 1e3, 64: 1e3}, {1: 1e3}))
    guesser = pytest.importorskip("tests.proposal.test_auto").Guesser([1] * 99)
    slow = SpeculativeDecoder(tiny_target(), guesser, DecodeConfig("auto"))
    list(slow.decode(torch.tensor([3, 1, 2]), SamplingConfig(max_new_tokens=30)))
    assert seen[0].verify(1) < 500 and seen[0].experience.costs["overhead"] > 0
