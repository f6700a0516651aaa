"""The commands: recipes, what is refused before anything loads, and one small run of each stage."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from reanchor.drafters.load import load_drafter
from reanchor_cli.train import carryover, drafter, own_device, responses, train, use_recipe
from tests.training import planted

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"


def invoke(*arguments):
    return CliRunner().invoke(train, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    planted.planted_target().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("rank", [0, 4])
def test_a_baseline_and_its_continuation(target, tmp_path, rank):
    texts = planted.write_texts(tmp_path / "responses.jsonl", 12)
    recipe = tmp_path / "recipe.json"
    shared = {"responses": str(texts), "target": str(target), "dtype": "float32", "epochs": 1.0, "anchors": 4}
    shared |= {"held_out": 4, "probe": 2, "decode_prompts": 1, "decode_tokens": 8, "precision": "no"}
    shape = {"block_size": 4, "layers": "0", "taps": "0", "mask_token": planted.MASK, "markov_rank": rank}
    recipe.write_text(json.dumps({"drafter": shared | shape, "carryover": shared | {"lr": 0.5}}))
    done = invoke("drafter", "--recipe", recipe, "--out", tmp_path / "baseline", "--epochs", 2)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "baseline" / "drafter")
    assert json.loads((tmp_path / "baseline" / "summary.json").read_text())["total_steps"] == 4
    start = tmp_path / "baseline" / "drafter"
    done = invoke(
        "carryover", "--recipe", recipe, "--init", start, "--out", tmp_path / "carryover", "--lr", 0.001
    )
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "carryover" / "summary.json").read_text())
    assert summary["settings"]["lr"] == 0.001 and summary["settings"]["carryover"]
    assert summary["settings"]["target"] == str(target)
    last = load_drafter(tmp_path / "carryover" / "drafter", planted.planted_target())
    assert last.carryover and (last.config.markov is not None) is (rank > 0)
    assert float(last.carryover_embedding.abs().sum()) > 0


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (("carryover", "--responses", "x", "--out", "y"), "--init"),
        (("drafter", "--responses", "x", "--out", "y", "--batch", "0"), "batch must be positive"),
        (("responses", "--out", "y", "--temperature", "-1"), "temperature must be 0"),
        (("drafter", "--recipe", "/nowhere.json", "--out", "y"), "cannot read the recipe"),
    ],
)
def test_mistakes_end_with_two(arguments, reason):
    done = invoke(*arguments)
    assert done.exit_code == 2 and reason in done.output


def test_a_recipe_with_an_unknown_option_is_refused(tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"drafter": {"learning_rate": 1}}))
    done = invoke("drafter", "--recipe", path, "--responses", "x", "--out", "y")
    assert done.exit_code == 2 and "learning_rate, which the command doesn't know" in done.output


def test_a_recipe_with_an_unknown_section_is_refused(tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"baseline": {"lr": 0.1}}))
    done = invoke("drafter", "--recipe", path, "--responses", "x", "--out", "y")
    assert done.exit_code == 2 and "section baseline; there are responses, drafter, carryover" in said(done)


def test_a_recipe_may_name_one_file_where_several_can_be(tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"responses": {"prompts": "nowhere.jsonl", "target": "nowhere", "out": "y"}}))
    context = click.Context(responses, info_name="responses")
    use_recipe(context, responses.params[0], path)
    assert context.default_map["prompts"] == ["nowhere.jsonl"] and context.default_map["out"] == "y"


def said(done):
    return " ".join(done.output.split())


def test_an_out_that_is_a_file_is_refused(target, tmp_path):
    texts = planted.write_texts(tmp_path / "responses.jsonl", 12)
    (tmp_path / "out").write_text("mine")
    arguments = ["--target", target, "--device", "cpu", "--responses", texts, "--held-out", 4, "--probe", 2]
    arguments += ["--decode-prompts", 2, "--mask-token", planted.MASK, "--out", tmp_path / "out"]
    done = invoke("drafter", *arguments)
    assert done.exit_code == 2 and "cannot be written to" in said(done) and "another --out" in said(done)
    assert (tmp_path / "out").read_text() == "mine"


def test_what_is_not_installed_is_said_at_once(monkeypatch):
    monkeypatch.setattr("reanchor_cli.train.find_spec", lambda name: None)
    done = invoke("drafter", "--target", "nowhere", "--responses", "x", "--out", "y")
    assert done.exit_code == 2 and "needs accelerate and matplotlib" in said(done)


def test_responses_are_one_processs_work(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = invoke("responses", "--prompts", "x", "--out", "y")
    assert done.exit_code == 2 and "without a launcher" in said(done)


def test_every_process_has_a_device_of_its_own(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert own_device(None) is None and own_device("cuda") == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_device(None) == own_device("cuda") == "cuda:3"
    assert own_device("cpu") == "cpu" and own_device("cuda:1") == "cuda:1"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.json")), ids=lambda path: path.stem)
def test_the_recipes_hold_known_options(path):
    sections = json.loads(path.read_text())
    commands = {"responses": responses, "drafter": drafter, "carryover": carryover}
    assert sections.keys() == commands.keys()
    for name, section in sections.items():
        options = {option.name: option for option in commands[name].params}
        assert section.keys() <= options.keys()
        required = {option.name for option in options.values() if option.required}
        assert required <= section.keys()
