"""`reanchor bench` as a user meets it, on a pair of no size."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from reanchor_cli.main import main

from ..checkpoints import write_drafter, write_target
from ..drafters import writer

Invoke = Callable[..., Result]
ROWS = [
    {"id": "one", "turns": ["add 2 and 3"], "reference": "5"},
    {"id": "two", "turns": ["name a fruit", "and a root"]},
    {"id": "three", "turns": ["say it again"]},
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    return write_target(root / "target"), write_drafter(root / "drafter")


@pytest.fixture
def bench(pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    target, drafter = map(str, pair)

    def invoke(*arguments: str, short: bool = True) -> Result:
        places = ("--target", target, "--drafter", drafter, "--device", "cpu")
        length = ("--max-new-tokens", "10") if short else ()
        return CliRunner().invoke(main, ["bench", *places, *length, *arguments])

    return invoke


def figures(result: Result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_holds_every_method_and_every_figure(bench):
    given = figures(bench("--prompts", "own.jsonl", "--json"))
    (run,) = given["runs"]
    assert [cell["method"] for cell in run["cells"]] == [
        "hf",
        "plain",
        "dflash",
        "reanchor",
        "ddtree",
        "auto",
    ]
    for cell in run["cells"]:
        assert cell["prompts"] == 3 and cell["faults"] == cell["ties"] == 0
        assert cell["tau"] >= 1 and cell["tokens"] > 3 and cell["tokens_per_second"] > 0
        low, high = cell["speedup_interval"]
        assert low <= cell["speedup"] * 1.001 and high >= cell["speedup"] * 0.999
    assert run["cells"][0]["tau"] == run["cells"][1]["tau"] == 1
    assert max(cell["speedup"] for cell in run["cells"][:2]) == pytest.approx(1)
    header = run["header"]
    assert set(header["engines"]) == {cell["method"] for cell in run["cells"]} - {"hf"}
    assert {engine["used"] for engine in header["engines"].values()} == {"fused"}
    needed = {
        "reanchor",
        "torch",
        "transformers",
        "hardware",
        "threads",
        "commit",
        "decode",
        "sampling",
        "dtype",
    }
    assert needed <= header.keys()
    assert header["prompts"] == {"own": ["one", "two", "three"]}
    assert Path(run["file"]).exists()


def test_the_same_command_goes_on_and_another_does_not_touch_the_file(bench, tmp_path):
    first = bench("--prompts", "own.jsonl", "--method", "plain", "--method", "dflash", "--output", "r.jsonl")
    assert first.exit_code == 0, first.output
    lines = (tmp_path / "r.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 4
    (tmp_path / "r.jsonl").write_text("".join(lines[:2]))
    again = bench("--prompts", "own.jsonl", "--method", "plain", "--method", "dflash", "--output", "r.jsonl")
    assert "holds 1 of 3 prompts" in again.stderr
    now = (tmp_path / "r.jsonl").read_text().splitlines(keepends=True)
    assert now[:2] == lines[:2] and len(now) == 4
    other = bench("--prompts", "own.jsonl", "--method", "plain", "--output", "r.jsonl")
    assert other.exit_code == 2 and "another run (methods:" in other.stderr
    assert (tmp_path / "r.jsonl").read_text().splitlines(keepends=True) == now


def test_csv_and_markdown(bench):
    run = ("--prompts", "own.jsonl", "--temperature", "0,1", "--output", "r.jsonl")
    rows = list(csv.DictReader(io.StringIO(bench(*run, "--csv").stdout)))
    assert [(row["temperature"], row["method"]) for row in rows[5:7]] == [("0.0", "auto"), ("1.0", "hf")]
    columns = {"dataset", "tau", "tau_low", "tau_high", "speedup", "speedup_low", "verify_seconds", "faults"}
    assert columns <= rows[0].keys()
    assert all(value not in ("", None) for value in (rows[3]["tau_low"], rows[3]["draft_seconds"]))
    text = bench("--report", "r.jsonl", "--markdown").stdout
    assert text.count("| method | own |") == 2 and "| reanchor | " in text and "**" in text
    twice = list(csv.DictReader(io.StringIO(bench("--report", "r.jsonl", "r.jsonl", "--csv").stdout)))
    assert len(twice) == 2 * len(rows) and {row["file"] for row in twice} == {"r.jsonl"}


def test_a_table_and_its_best_are_shown(bench):
    shown = bench("--prompts", "own.jsonl", "--limit", "2")
    assert shown.exit_code == 0, shown.output
    assert "The paper has reanchor over dflash at +15.2 % / +13.4 %." in shown.stdout
    assert "plain (HF)" in shown.stdout and "break-even" in shown.stdout
    assert "0% of 1" in shown.stdout or "1 cut" in shown.stdout  # one of the two has a number for reference


def test_two_runs_are_compared(bench):
    for name in ("a", "b"):
        bench(
            "--prompts", "own.jsonl", "--method", "plain", "--method", "dflash", "--output", f"{name}.jsonl"
        )
    given = figures(bench("--report", "a.jsonl", "b.jsonl", "--json"))
    dflash = given["comparison"][1]
    assert (dflash["method"], dflash["prompts"], dflash["tau_p"]) == ("dflash", 3, 1.0)
    assert dflash["taus"][0] == dflash["taus"][1]
    assert "A: a.jsonl, B: b.jsonl" in bench("--report", "a.jsonl", "b.jsonl").stdout


@pytest.mark.parametrize("name", ["components", "attach", "scope", "alignment", "earliest", "agreement"])
def test_every_ablation_runs(bench, name):
    shown = bench("--prompts", "own.jsonl", "--limit", "2", "--ablation", name, "--output", "a.jsonl")
    assert shown.exit_code == 0, shown.output
    assert "paper (Qwen3-4B" in shown.stdout
    assert bench("--report", "a.jsonl").stdout == shown.stdout


def test_a_sweep_shows_budgets_and_costs(bench):
    sweep = ("--sweep", "max_nodes=4,8,none", "--sweep", "max_shifts=0,1")
    shown = bench("--prompts", "own.jsonl", "--limit", "1", *sweep, "--output", "s.jsonl")
    assert shown.exit_code == 0, shown.output
    for part in ("ddtree τ", "max_shifts, T=0", "one verify pass behind", "times one block"):
        assert part in shown.stdout
    header = json.loads(Path("s.jsonl").read_text().splitlines()[0])
    assert set(header["costs"]["verify"]) >= {"1", "4", "8", "128"}
    assert bench("--report", "s.jsonl").stdout == shown.stdout


def test_a_sweep_takes_methods_and_peers(bench):
    """The table of methods at equal node counts and with a free budget: one run, one row a method and count."""
    asked = [part for method in ("plain", "dflash", "ddtree", "auto") for part in ("--method", method)]
    run = ("--prompts", "own.jsonl", "--limit", "1", "--sweep", "max_nodes=4,none", *asked)
    shown = bench(*run, "--peer", "prompt-lookup", "--output", "m.jsonl")
    assert shown.exit_code == 0, shown.output
    header = json.loads(Path("m.jsonl").read_text().splitlines()[0])
    # ddtree without a budget has 64, and says so
    swept = ["ddtree max_nodes=4", "auto max_nodes=4", "ddtree max_nodes=64", "auto max_nodes=none"]
    assert header["methods"] == ["plain", "dflash", *swept, "prompt-lookup"]
    assert "auto τ" in shown.stdout and "reanchor" not in shown.stdout
    assert bench("--report", "m.jsonl").stdout == shown.stdout


def test_a_sweep_is_of_any_knob_that_its_methods_have(bench):
    sweep = ("--sweep", "sampling_mode=exact-match,rejection", "--sweep", "graphs=false,true")
    asked = ("--method", "plain", "--method", "ddtree", "--temperature", "1", "--output", "k.jsonl")
    shown = bench("--prompts", "own.jsonl", "--limit", "1", *sweep, *asked)
    assert shown.exit_code == 0, shown.output
    named = [f"ddtree {value}" for value in ("sampling_mode=exact-match", "sampling_mode=rejection")]
    header = json.loads(Path("k.jsonl").read_text().splitlines()[0])
    assert header["methods"] == ["plain", *named, "ddtree graphs=false", "ddtree graphs=true"]
    assert bench("--report", "k.jsonl").stdout == shown.stdout


def test_pictures_are_drawn(bench):
    pytest.importorskip("matplotlib")
    # with a budget of its own, auto may rightly decode so small a target plainly, and has no edges to draw
    done = bench("--prompts", "own.jsonl", "--plots", "pictures", "--max-nodes", "8")
    assert done.exit_code == 0, done.output
    drawn = {path.name: path.read_bytes() for path in Path("pictures").iterdir()}
    names = ("acceptance-lengths", "position-acceptance", "tau", "speedup", "time-split", "nodes-accepted")
    names += ("reliability",)
    assert set(drawn) == {f"{name}-T0.png" for name in names}
    assert all(data.startswith(b"\x89PNG") and len(data) > 5000 for data in drawn.values())


def test_peers_run_beside_us(bench):
    run = (
        "--prompts",
        "own.jsonl",
        "--method",
        "hf",
        "--method",
        "dflash",
        "--peer",
        "prompt-lookup",
        "--json",
    )
    lookup = figures(bench(*run))["runs"][0]["cells"][2]
    assert lookup["method"] == "prompt-lookup" and lookup["tau"] >= 1 and lookup["faults"] == 0


def test_zlab_runs_beside_us(bench):
    pytest.importorskip("dflash.model")
    run = ("--prompts", "own.jsonl", "--method", "hf", "--method", "dflash", "--peer", "zlab", "--json")
    cells = figures(bench(*run))["runs"][0]["cells"]
    assert cells[2]["method"] == "zlab" and cells[2]["faults"] == 0
    assert cells[2]["tau"] == cells[1]["tau"]  # the same chain of the same drafter


def test_carryover_joins_where_the_checkpoint_has_it(bench, tmp_path):
    """Once per body of work: with it on and off, alone and with shifted blocks."""
    plain = writer.dflash()
    width = plain.tensors["fc.weight"].shape[1]
    keys = plain.config | {"dflash_config": plain.config["dflash_config"] | {"carryover": True}}
    tensors = plain.tensors | {"carryover_embedding": torch.full((width,), 0.1)}
    folder = replace(plain, config=keys, tensors=tensors).save(tmp_path / "learned")
    cells = figures(bench("--prompts", "own.jsonl", "--drafter", str(folder), "--json"))["runs"][0]["cells"]
    methods = ["hf", "plain", "dflash", "reanchor", "ddtree", "auto", "carryover", "carryover-reanchor"]
    assert [cell["method"] for cell in cells] == methods
    assert not any(cell["faults"] for cell in cells)
    assert cells[6]["blocks_per_round"] <= 1 < cells[7]["blocks_per_round"]


def test_a_fault_ends_with_one_and_shows_no_speed(bench, monkeypatch):
    from reanchor.benchmark.runners import EngineRunner

    honest = EngineRunner.decode

    def broken(self, ids, sampling):
        outcome = honest(self, ids, sampling)
        if self.name == "reanchor":
            outcome.tokens[3] = outcome.tokens[3] % 40 + 1
        return outcome

    monkeypatch.setattr(EngineRunner, "decode", broken)
    shown = bench("--prompts", "own.jsonl", "--limit", "2")
    assert shown.exit_code == 1
    assert "faults" in shown.stdout and "reanchor: token 3 differs" in shown.stderr
    (path,) = Path().glob("bench-*.jsonl")
    again = bench("--report", str(path))
    assert again.exit_code == 1 and again.stdout == shown.stdout


BRIEF = ("--prompts", "own.jsonl", "--method", "plain", "--method", "dflash", "--output", "r.jsonl")


def test_an_interruption_says_that_the_same_command_goes_on(bench, monkeypatch):
    from reanchor.benchmark.harness import Bench

    honest = Bench.measure

    def interrupted(self, dataset, prompt, temperature, index):
        if index == 2:
            raise KeyboardInterrupt
        return honest(self, dataset, prompt, temperature, index)

    monkeypatch.setattr(Bench, "measure", interrupted)
    shown = bench(*BRIEF)
    assert shown.exit_code == 130 and "the same command goes on" in shown.stderr
    reported = bench("--report", "r.jsonl")
    assert "2 of 3 prompts" in reported.stdout
    (run,) = figures(bench("--report", "r.jsonl", "--json"))["runs"]
    assert run["total"] == 3 and run["cells"][0]["prompts"] == 2
    monkeypatch.setattr(Bench, "measure", honest)
    assert "3 prompts" not in bench(*BRIEF).stdout and len(Path("r.jsonl").read_text().splitlines()) == 4


def test_a_prompt_too_long_is_skipped_and_counted(bench, tmp_path):
    (tmp_path / "own.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in [*ROWS, {"id": "long", "turns": ["x" * 5000]}])
    )
    shown = bench(*BRIEF)
    assert shown.exit_code == 0, shown.output
    assert "first turn: long" in shown.stderr and "own long: skipped, turn 1 has" in shown.stderr
    assert "float32, 1 skipped" in shown.stdout
    assert "holds 4 of 4 prompts" in bench(*BRIEF).stderr
    (run,) = figures(bench("--report", "r.jsonl", "--json"))["runs"]
    assert [each["id"] for each in run["skipped"]] == ["long"]


def test_two_runs_do_not_write_one_file(bench):
    from reanchor.lock import locked

    with locked(Path("r.jsonl")):
        shown = bench(*BRIEF)
    assert shown.exit_code == 2 and "another run is writing r.jsonl" in shown.stderr
    assert Path("r.jsonl").read_text() == ""


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--output", "afile/x.jsonl"), "cannot be written to afile/x.jsonl"),
        (("--plots", "afile"), "cannot be drawn into afile"),
        (("--plots", "without matplotlib"), "plots need matplotlib: pip install"),
    ],
)
def test_places_are_tried_before_anything_is_measured(bench, monkeypatch, arguments, said):
    from reanchor.benchmark.harness import Bench

    Path("afile").write_text("mine")
    monkeypatch.setattr(Bench, "measure", None)
    if "matplotlib" in arguments[1]:
        monkeypatch.setattr("reanchor_cli.bench.find_spec", lambda name: None)
    shown = bench(*BRIEF, *arguments)
    assert shown.exit_code == 2 and said in " ".join(shown.stderr.split())


def test_the_help_says_the_seed_that_is_used(bench):
    said = " ".join(bench("--help").output.split())
    assert "every prompt has its own of it. [default: 0]" in said


TREES = ("--method", "plain", "--method", "ddtree")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--dataset", "gsm9k"), "no dataset 'gsm9k': known are demo, gsm8k"),
        (("--dataset", "gsm8k", "--data-dir", "nowhere"), "no folder"),
        (("--dataset", "gsm8k", "--data-dir", "."), "no gsm8k.jsonl in ., which has own"),
        (("--prompts", "missing.jsonl"), "cannot read the prompts of missing.jsonl"),
        (("--prompts", "own.jsonl", "--temperature", "inf"), "temperature must be finite"),
        (("--prompts", "own.jsonl", "--temperature", "nan"), "temperature must be"),
        (("--prompts", "own.jsonl", "--temperature", "warm"), "--temperature must be numbers"),
        (("--prompts", "own.jsonl", "--limit", "0"), "limit must be at least 1"),
        (("--prompts", "own.jsonl", "--method", "dflash"), "nothing to compare with"),
        (("--prompts", "own.jsonl", "--sweep", "speed=1"), "--sweep takes KNOB=VALUE"),
        (("--prompts", "own.jsonl", "--sweep", "max_nodes=few"), "'few' is no whole number"),
        (("--prompts", "own.jsonl", "--sweep", "attach=there"), "attach must be one of"),
        (("--prompts", "own.jsonl", "--sweep", "graphs=maybe"), "graphs must be true or false, got 'maybe'"),
        (("--prompts", "own.jsonl", "--sweep", "sampling_mode=rejection"), "method 'reanchor' merges"),
        (
            ("--prompts", "own.jsonl", "--method", "plain", "--rule", "attach=fixed"),
            "which is not among plain: add",
        ),
        (
            ("--prompts", "own.jsonl", *TREES, "--sweep", "scope=full,in_block"),
            "not among plain, ddtree: add",
        ),
        (("--prompts", "own.jsonl", "--sweep", "max_nodes=4", "--ablation", "attach"), "runs of their own"),
        (("--prompts", "own.jsonl", "--ablation", "attach", "--method", "hf"), "choose their methods; drop"),
        (("--prompts", "own.jsonl", "--method", "hf", "--method", "carryover"), "not trained to read"),
        (("--report",), "name one"),
        (("--report", "own.jsonl"), "no results file of this version"),
        (("--report", "gone.jsonl"), "cannot read the results"),
        (("own.jsonl",), "Results are shown with --report"),
    ],
)
def test_mistakes_are_named(bench, arguments, said, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    result = bench(*arguments)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
