"""The header of a results file holds all that its figures depend on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reanchor.benchmark import fingerprint
from reanchor.config import ReAnchorRules
from reanchor.datasets import SUITES
from reanchor.loading import Pair, load_pair
from reanchor_cli.bench import bench, run_spec
from reanchor_cli.experiment import experiment, header_of, methods_of, prompt_sets, weights_of

from ..checkpoints import write_drafter, write_target

PLACES = {"target", "drafter", "dtype", "device"}  # what was loaded of them is in the header
WITHOUT_FIGURES = {"quiet", "files", "report", "output", "form", "plots"}
OTHERWISE = {  # every option that changes figures, given otherwise than in BASE
    "dataset": ("--dataset", "demo"),
    "suite": ("--data-dir", "folder", "--suite", "speculators"),
    "data_dir": ("--data-dir", "folder", "--dataset", "demo"),
    "prompts": ("--prompts", "other.jsonl"),
    "limit": ("--limit", "5"),
    "choice_seed": ("--choice-seed", "7"),
    "temperature": ("--temperature", "1"),
    "methods": ("--method", "plain"),
    "peers": ("--peer", "prompt-lookup"),
    "ablation": ("--ablation", "attach"),
    "sweeps": ("--sweep", "max_nodes=4"),
    "raw": ("--raw",),
    "thinking": ("--thinking",),
    "confidence_threshold": ("--confidence-threshold", "0.5"),
    "max_new_tokens": ("--max-new-tokens", "9"),
    "top_p": ("--top-p", "0.5"),
    "top_k": ("--top-k", "3"),
    "seed": ("--seed", "5"),
    "attach": ("--rule", "attach=longest"),
    "retention": ("--rule", "retention=longest"),
    "scope": ("--rule", "scope=in_block"),
    "verifier_path": ("--rule", "verifier_path=path"),
    "carryover_shifted": ("--rule", "carryover_shifted=true"),
    "sampling_mode": ("--sampling-mode", "exact-match"),
    "max_shifts": ("--rule", "max_shifts=1"),
    "max_nodes": ("--max-nodes", "5"),
    "attention": ("--attention", "sdpa"),
    "forward": ("--forward", "transformers"),
    "graphs": ("--graphs",),
    "attach_seed": ("--rule", "attach_seed=3"),
}
ALIAS = dict.fromkeys(ReAnchorRules.__dataclass_fields__, "rules")  # they have one option together
BASE = ("--prompts", "own.jsonl")
MADE: list[dict[str, Any]] = []  # the header of BASE, once


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    root = tmp_path_factory.mktemp("pair")
    return load_pair(write_target(root / "target"), write_drafter(root / "drafter"), device="cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("reanchor_cli.experiment.environment", lambda device: {})
    rows = "".join(json.dumps({"id": str(at), "turns": [f"prompt {at}"]}) + "\n" for at in range(2))
    for name in ("own", "other"):
        (tmp_path / f"{name}.jsonl").write_text(rows)
    (tmp_path / "folder").mkdir()
    for name in ("demo", *SUITES["speculators"]):
        (tmp_path / "folder" / f"{name}.jsonl").write_text(rows)
    return tmp_path


@pytest.fixture
def base(pair: Pair) -> dict[str, Any]:
    if not MADE:
        MADE.append(header(pair, *BASE))
    return MADE[0]


def header(pair: Pair, *arguments: str) -> dict[str, Any]:
    """As the command would write it, but for the time of its start."""
    given = bench.make_context("bench", list(arguments)).params
    study, terms = experiment(given), run_spec(given)
    names = [each.name for each in methods_of(pair, terms, study)]
    made = header_of(pair, terms, prompt_sets(given), **study.header(), methods=names)
    return {name: value for name, value in made.items() if name != "started"}


def test_every_option_is_known_to_this_file():
    options = {option.name for option in bench.params}
    assert options == PLACES | WITHOUT_FIGURES | {ALIAS.get(name, name) for name in OTHERWISE}


@pytest.mark.parametrize("option", OTHERWISE)
def test_an_option_that_changes_figures_changes_the_header(option, base, pair):
    arguments = OTHERWISE[option]
    sets = {"--prompts", "--dataset", "--suite"}.isdisjoint(arguments)
    assert header(pair, *(BASE if sets else ()), *arguments) != base


def test_nothing_else_does(base, pair):
    assert header(pair, *BASE, "--output", "r.jsonl", "--json", "--plots", "pictures") == base


def test_the_header_is_json(base):
    assert json.loads(json.dumps(base)) == base


def test_the_same_rows_of_another_place_are_another_run(pair):
    shipped = header(pair, "--dataset", "demo", "--limit", "2")
    assert shipped["sources"] == {"demo": "shipped"}
    assert header(pair, *OTHERWISE["data_dir"])["sources"] == {"demo": str(Path("folder/demo.jsonl"))}


def test_the_pair_is_in_the_header(pair):
    made = header(pair, *BASE, "--target", "named")
    assert made["target"] == "named" and made["drafter"] == pair.drafter_name
    assert (made["device"], made["dtype"]) == ("cpu", "float32")
    assert header(replace(pair, drafter_name="another"), *BASE) != header(pair, *BASE)


@pytest.mark.parametrize("change", [{"turns": ["another"]}, {"reference": "7"}])
def test_other_texts_under_the_same_ids_are_another_run(change, pair, folder):
    before = header(pair, *BASE)
    row = json.loads((folder / "own.jsonl").read_text().splitlines()[0])
    second = (folder / "own.jsonl").read_text().splitlines()[1]
    (folder / "own.jsonl").write_text(json.dumps({**row, **change}) + "\n" + second)
    after = header(pair, *BASE)
    assert {name for name in before if before[name] != after[name]} == {"texts"}


def test_other_weights_in_the_same_place_are_another_run(tmp_path):
    places = write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter")
    loaded = load_pair(*places, device="cpu")
    before = weights_of(loaded)
    assert None not in before.values() and weights_of(loaded) == before
    for name, folder in zip(before, places, strict=True):
        (folder / "training.log").write_text("more")
        assert weights_of(loaded) == before
        path = folder / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[-3] ^= 64  # one number, the file as long as before
        path.write_bytes(data)
        now = weights_of(loaded)
        assert [key for key in before if now[key] != before[key]] == [name]
        before = now


def test_a_large_file_is_looked_into_from_its_first_byte_to_its_last(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "SAMPLE", 8)
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(10_001))
    before = fingerprint.of_checkpoint(tmp_path)
    for at in (0, 10_000):
        data = bytearray(10_001)
        data[at] = 1
        path.write_bytes(data)
        assert fingerprint.of_checkpoint(tmp_path) != before


def test_a_target_of_the_hub_is_known_by_its_commit():
    config = SimpleNamespace(_commit_hash="abc")
    assert fingerprint.of_target(SimpleNamespace(name_or_path="org/model", config=config)) == "abc"
