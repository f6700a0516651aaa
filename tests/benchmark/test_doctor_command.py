"""`reanchor doctor` on pairs that fit, that don't, and that aren't there."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from reanchor_cli.main import main

from ..checkpoints import tokenizer, write_drafter, write_target


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter")


def doctor(target: Path, drafter: Path, *arguments: str) -> Result:
    places = ["--target", str(target), "--drafter", str(drafter), "--device", "cpu"]
    return CliRunner().invoke(main, ["doctor", *places, *arguments])


def test_a_pair_that_fits(pair):
    done = doctor(*pair, "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["versions"]["torch"] == version("torch")  # which may lack what the build is for
    assert "GFLOP/s" in facts["devices"]["cpu"]
    assert facts["pair"]["tokenizer"] == "the target's; the drafter brings none"
    assert "enable_thinking" in facts["pair"]["thinking"]
    assert facts["attention"]["sdpa"].startswith("takes it")
    if not torch.cuda.is_available():
        assert "CUDA" in facts["attention"]["flash"]
    assert sum("chosen" in said for said in facts["attention"].values()) == 1


def test_memory_grows_with_the_context(pair):
    short, long = (
        json.loads(doctor(*pair, "--json", "--context", count).stdout)["memory"]
        for count in ("1000", "100000")
    )
    grown = [int(each["all together"].split()[0].replace(",", "")) for each in (short, long)]
    assert grown[1] > 10 * max(grown[0], 1)


def test_tokenizers_are_compared_by_content(pair):
    tokenizer().save_pretrained(pair[1])
    assert "the same" in json.loads(doctor(*pair, "--json").stdout)["pair"]["tokenizer"]
    file = pair[1] / "tokenizer.json"
    content = json.loads(file.read_text())
    words = content["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    file.write_text(json.dumps(content))
    done = doctor(*pair)
    assert done.exit_code == 1 and "DIFFERENT: 2 tokens have other ids" in done.stdout


def test_a_pair_that_does_not_fit_is_a_fact(pair):
    file = pair[1] / "config.json"
    config = json.loads(file.read_text())
    text = json.dumps(config).replace('"mask_token_id": ', '"mask_token_id": 99999')
    file.write_text(text)
    done = doctor(*pair)
    assert done.exit_code == 1 and "mask_token_id" in done.stdout and "versions" in done.stdout


def test_a_drafter_that_does_not_fit_hides_nothing_about_the_target(pair):
    """What may explain the trouble, another tokenizer for one, is still told."""
    tokenizer().save_pretrained(pair[1])
    file = pair[1] / "config.json"
    file.write_text(file.read_text().replace('"mask_token_id": ', '"mask_token_id": 99999'))
    done = doctor(*pair, "--json")
    facts = json.loads(done.stdout)
    assert done.exit_code == 1
    assert "mask_token_id" in facts["pair"]["trouble"] and facts["pair"]["drafter"] == "not loaded"
    assert "the same" in facts["pair"]["tokenizer"] and facts["pair"]["forward"]
    assert facts["attention"]["sdpa"].startswith("takes it") and "target weights" in facts["memory"]
    gone = json.loads(doctor(pair[0], pair[1] / "gone", "--json").stdout)
    assert gone["pair"]["trouble"] and gone["pair"]["tokenizer"] == "the target's" and gone["memory"]


def test_what_is_not_there(tmp_path, pair):
    done = doctor(tmp_path / "nothing", pair[1])
    assert done.exit_code == 1 and "isn't there" in done.stdout
    assert doctor(*pair, "--context", "0").exit_code == 2
