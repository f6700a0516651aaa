"""`reanchor inspect`: what each dialect is said to be, on standard output."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reanchor_cli.main import main

from .writer import DIALECTS, REDUCED

EXPECTED: dict[str, dict[str, Any]] = {
    "dflash": {"dialect": "z-lab", "family": "DFlash", "block_size": 4, "proposals": 3, "heads": []},
    "draft-opd": {"dialect": "z-lab", "family": "DFlash", "proposals": 3},
    "dflash swa": {"attention": ["1 × window 6, causal", "1 × full, bidirectional"]},
    "dflash2": {
        "family": "DFlash 2",
        "attention": ["1 × window 6, bidirectional", "1 × full, bidirectional"],
    },
    "deepspec dflash": {"dialect": "DeepSpec", "family": "DSpark", "proposals": 4, "heads": []},
    "deepspec gated": {"heads": ["Markov, gated, rank 6", "confidence, calibrated by position"]},
    "deepspec gemma": {"target_layers_read": [-1, 2, 4], "scales": {"embedding": 32**0.5, "soft cap": 2.0}},
    "specforge dspark": {"dialect": "SpecForge", "family": "DSpark", "proposals": 4},
    "domino shifted": {"dialect": "SpecForge", "family": "Domino", "proposals": 4},
    "domino unshifted": {"family": "Domino", "proposals": 3},
    "speculators dflash": {
        "dialect": "speculators",
        "target_layers_read": [0, 2, 4],
        "expected_target": "example/target",
        "unused_tensors": ["t2d"],
    },
    "speculators dspark": {"dialect": "speculators", "family": "DSpark", "proposals": 4},
    "speculators domino": {"dialect": "speculators", "family": "Domino", "proposals": 4},
}


def inspect(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_recognised(dialect: str, tmp_path: Path) -> None:
    written = DIALECTS[dialect]
    result = inspect(written.save(tmp_path), "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert EXPECTED.get(dialect, {}).items() <= found.items()
    assert found["parameters"] == sum(tensor.numel() for tensor in written.tensors.values())
    assert found["mask_token_id"] == 95


def test_unused_keys_are_listed(tmp_path: Path) -> None:
    written = deepcopy(DIALECTS["dflash"])
    written.config["surprise"] = 1
    written.config["dflash_config"]["another"] = 2
    found = json.loads(inspect(written.save(tmp_path), "--json").stdout)
    assert {"surprise", "dflash_config.another"} <= set(found["unused_keys"])


def test_the_demo_drafter() -> None:
    result = inspect("demo")
    assert result.exit_code == 0
    assert "block size             8\n" in result.stdout and "12,280,704" in result.stdout


def test_the_table_shows_a_reduced_vocabulary(tmp_path: Path) -> None:
    assert f"drafts {REDUCED} of them (d2t)" in inspect(DIALECTS["speculators dspark"].save(tmp_path)).stdout


def test_damage_ends_with_code_two(tmp_path: Path) -> None:
    assert inspect(tmp_path / "nowhere").exit_code == 2
    written = deepcopy(DIALECTS["dflash"])
    del written.tensors["layers.1.mlp.up_proj.weight"]
    result = inspect(written.save(tmp_path))
    assert result.exit_code == 2 and result.stdout == ""
    assert "missing: layers.1.mlp.up_proj.weight" in result.stderr.replace("\n", " ")
