"""The commands: recipes, what is refused before anything loads, and one small run of each stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from reanchor.drafters.loading import load_drafter
from reanchor_cli.train import carryover, drafter, responses, train
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
    assert summary["settings"]["lr"] == 0.001 and summary["carryover"]
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
