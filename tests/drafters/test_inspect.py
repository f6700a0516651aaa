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


@pytest.mark.parametrize(
    ("dialect", "name"),
    [
        ("deepspec vanilla", "DFlashDraftModel"),
        ("deepspec dflash", "DFlashQwen3DSparkModel"),
        ("dflash2", "DFlashDraftModel"),
        ("domino shifted", "DominoDraftModel"),
        ("speculators dspark", "Anything"),
        ("dflash", "Anything"),
    ],
)
def test_a_renamed_class_changes_nothing(dialect: str, name: str, tmp_path: Path) -> None:
    written = DIALECTS[dialect]
    found = json.loads(inspect(written.save(tmp_path / "as-is"), "--json").stdout)
    renamed = deepcopy(written)
    renamed.config["architectures"] = [name]
    assert json.loads(inspect(renamed.save(tmp_path / "renamed"), "--json").stdout) == found


@pytest.mark.parametrize(
    ("keys", "proposals"),
    [
        ({"sample_from_anchor": True}, 4),
        ({"sample_from_anchor": False, "shift_label": True}, 3),
        ({"dspark_bonus_anchor": False}, 4),
        ({"dspark_bonus_anchor": True, "shift_label": True}, 3),
        ({"shift_label": True}, 4),
        ({}, 3),
    ],
)
def test_alignment_by_the_most_explicit_key(keys: dict[str, bool], proposals: int, tmp_path: Path) -> None:
    for number, nested in enumerate((False, True)):
        written = deepcopy(DIALECTS["dflash"])
        (written.config["dflash_config"] if nested else written.config).update(keys)
        found = json.loads(inspect(written.save(tmp_path / str(number)), "--json").stdout)
        assert found["proposals"] == proposals


def test_a_bonus_anchor_makes_dspark_unshifted(tmp_path: Path) -> None:
    written = deepcopy(DIALECTS["deepspec vanilla"])
    written.config["dspark_bonus_anchor"] = True
    assert json.loads(inspect(written.save(tmp_path), "--json").stdout)["proposals"] == 3


ATTENTION: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["2 × full, bidirectional"]),
    ({"is_causal": True}, ["2 × full, causal"]),
    ({"is_causal": False, "causal": True}, ["2 × full, bidirectional"]),
    ({"causal": True}, ["2 × full, causal"]),
    (
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9},
        ["1 × window 9, causal", "1 × full, bidirectional"],
    ),
    (
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9, "is_causal": False},
        ["1 × window 9, bidirectional", "1 × full, bidirectional"],
    ),
    (
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
        | {"sliding_window_non_causal": True},
        ["1 × window 9, bidirectional", "1 × full, bidirectional"],
    ),
    ({"use_swa": True, "swa_window_size": 7}, ["2 × window 7, bidirectional"]),
    ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}, [
        "1 × full, bidirectional", "1 × window 9, causal",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "expected"), ATTENTION)
def test_who_sees_whom(keys: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    written = deepcopy(DIALECTS["dflash"])
    written.config.update(keys)
    assert json.loads(inspect(written.save(tmp_path), "--json").stdout)["attention"] == expected


def test_taps_of_the_first_vintage_are_spaced_by_rule(tmp_path: Path) -> None:
    """As Qwen3-8B's would be: five layers over 36 give 1, 9, 17, 25, 33."""
    written = deepcopy(DIALECTS["dflash"])
    del written.config["dflash_config"]["target_layer_ids"]
    written.config["num_target_layers"] = 12
    written.tensors["fc.weight"] = written.tensors["fc.weight"][:, :64].contiguous()
    assert json.loads(inspect(written.save(tmp_path), "--json").stdout)["target_layers_read"] == [1, 9]
