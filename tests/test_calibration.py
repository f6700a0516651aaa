"""Costs are measured once for a pair on a machine, and remembered."""

from __future__ import annotations

import json

import pytest
import torch
from huggingface_hub import constants

import reanchor.calibration
from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.calibration import latency_model
from reanchor.proposal.latency import LatencyModel
from tests.tiny import ScriptedDrafter, tiny_target


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.undo()  # of the suite's own place
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path))
    return tmp_path / "reanchor" / "costs.json"


def decoder(family: str = "qwen3", **knobs) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        tiny_target(family), ScriptedDrafter([1] * 99), DecodeConfig.of(method="auto", **knobs)
    )


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
    monkeypatch.setattr(reanchor.calibration, "measure_curves", None)
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
    costs = latency_model(near, {"verify": {1: 2.0, 4: 1.0}, "draft": {1: 1.5}}, 1000)
    assert costs.slopes == {"verify": {1: 0.001, 4: 0.0}, "draft": {1: 0.001}}
    assert not latency_model(near, near, 0).slopes  # the target has no room for another context


NONSENSE = {
    "no file of ours": lambda whole: [1, 2],
    "no entry": lambda whole: 7,
    "contexts that are none": lambda whole: dict.fromkeys(whole),
    "curves that are none": lambda whole: {context: {"verify": [1.0], "draft": 3} for context in whole},
    "one curve": lambda whole: {context: {"verify": each["verify"]} for context, each in whole.items()},
    "empty curves": lambda whole: {**whole, "438": {"verify": {}, "draft": {}}},
    "no seconds": lambda whole: altered(whole, 0.0),
    "less than none": lambda whole: altered(whole, -1.0),
    "not a number": lambda whole: altered(whole, float("nan")),
    "endless": lambda whole: altered(whole, float("inf")),
    "beyond any number of the machine's": lambda whole: altered(whole, 10**400),
    "words": lambda whole: altered(whole, "soon"),
    "sizes that are no numbers": lambda whole: {
        context: {name: {f"{size}x": 1.0 for size in curve} for name, curve in each.items()}
        for context, each in whole.items()
    },
    "widths left out": lambda whole: {**whole, "64": {**whole["64"], "verify": whole["438"]["verify"]}},
}


def altered(whole, seconds):
    return {**whole, "64": {**whole["64"], "draft": {**whole["64"]["draft"], "1": seconds}}}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_an_entry_that_is_damaged_is_measured_anew(file, nonsense):
    curves = decoder().costs().curves
    ((key, whole),) = json.loads(file.read_text()).items()
    broken = NONSENSE[nonsense](whole)
    file.write_text(json.dumps(broken if isinstance(broken, list) else {key: broken, "another": 1}))
    again = decoder().costs()
    assert {name: list(curve) for name, curve in again.curves.items()} == {
        name: list(curve) for name, curve in curves.items()
    }
    assert all(0 < seconds < 5 for curve in again.curves.values() for seconds in curve.values())
    mended = json.loads(file.read_text())
    assert mended.pop("another", 1) == 1 and list(mended) == [key]
    assert mended[key].keys() == whole.keys() and all(
        each.keys() == whole["64"].keys() and all(each.values()) for each in mended[key].values()
    )


def test_a_broken_file_is_measured_anew(file):
    file.parent.mkdir()
    file.write_text("{not json")
    assert decoder().costs() is not None and len(json.loads(file.read_text())) == 1


def test_what_could_not_be_written_leaves_nothing(file, monkeypatch):
    monkeypatch.setattr(reanchor.calibration, "UNSAVED", {})
    file.mkdir(parents=True)  # in the way
    assert decoder().costs() is not None and [*file.parent.iterdir()] == [file]


def test_another_model_of_cpu_has_curves_of_its_own(file, monkeypatch):
    assert decoder().costs() is not None
    monkeypatch.setattr(reanchor.calibration, "hardware", lambda device: "another")
    assert decoder().costs() is not None and len(json.loads(file.read_text())) == 2


def test_where_nothing_can_be_kept_it_is_measured_once_in_a_process(file, tmp_path, monkeypatch):
    monkeypatch.setattr(reanchor.calibration, "UNSAVED", {})
    (tmp_path / "reanchor").write_text("a file where the folder should be")
    told = []
    for _ in range(2):
        each = SpeculativeDecoder(
            tiny_target(), ScriptedDrafter([1] * 99), DecodeConfig("auto"), say=told.append
        )
        assert each.costs(sample=False) is not None and each.costs(sample=True) is not None
    assert len(told) == 1


def test_what_another_process_kept_meanwhile_stays(file, monkeypatch):
    real = reanchor.calibration.measure_curves

    def slowly(*given, **more):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"another pair": {}}))
        return real(*given, **more)

    monkeypatch.setattr(reanchor.calibration, "measure_curves", slowly)
    decoder().costs()
    assert len(json.loads(file.read_text())) == 2


def test_blocks_of_another_size_are_measured_apart(file):
    for size in (5, 9):
        SpeculativeDecoder(
            tiny_target(), ScriptedDrafter([1] * 99, block_size=size), DecodeConfig("auto")
        ).costs()
    assert len(json.loads(file.read_text())) == 2


def test_a_target_of_few_positions_has_costs(file):
    """No room for the context behind which others are measured."""
    for positions in (40, 150, 160):
        model = tiny_target()
        model = type(model)(
            type(model.config).from_dict({**model.config.to_dict(), "max_position_embeddings": positions})
        )
        costs = SpeculativeDecoder(model.eval(), ScriptedDrafter([1] * 99), DecodeConfig("auto")).costs()
        for costs.context in (1, positions):
            assert min(costs.verify(1), costs.draft(1)) > 0


def test_rounds_correct_the_costs(monkeypatch):
    seen: list[LatencyModel] = []
    real = reanchor.calibration.timed_stages

    def spy(stage, costs, clock):
        seen.append(costs)
        return real(stage, costs, clock)

    monkeypatch.setattr(reanchor.decoder, "timed_stages", spy)
    monkeypatch.setattr(reanchor.decoder, "calibrate", lambda *_: LatencyModel({1: 1e3, 64: 1e3}, {1: 1e3}))
    guesser = pytest.importorskip("tests.proposal.test_auto").Guesser([1] * 99)
    slow = SpeculativeDecoder(tiny_target(), guesser, DecodeConfig("auto"))
    list(slow.decode(torch.tensor([3, 1, 2]), SamplingConfig(max_new_tokens=30)))
    assert seen[0].verify(1) < 500 and seen[0].experience.costs["overhead"] > 0
