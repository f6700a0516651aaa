"""The table of published drafters: what auto takes, what the docs show, and who is warned of what."""

from __future__ import annotations

from pathlib import Path

import pytest

from reanchor.drafters.published import TABLE, drafter_of, find, thinking_mismatch
from reanchor.loading import load_pair

ROOT = Path(__file__).parents[2]


def test_auto_takes_the_first_for_a_hub_id() -> None:
    assert drafter_of("Qwen/Qwen3-8B").drafter == "z-lab/Qwen3-8B-DFlash-b16"
    assert drafter_of("qwen/qwen3-14b/").drafter == "deepseek-ai/dspark_qwen3_14b_block7"


def test_auto_knows_a_folder_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "Qwen3-4B").mkdir()
    assert drafter_of(tmp_path / "Qwen3-4B").drafter == "z-lab/Qwen3-4B-DFlash-b16"
    with pytest.raises(ValueError, match="no published drafter"):
        drafter_of(tmp_path / "elsewhere" / "Qwen3-4B")


def test_auto_without_an_entry_lists_what_it_knows() -> None:
    with pytest.raises(ValueError, match=r"'somebody/else'.*Qwen/Qwen3-4B, Qwen/Qwen3-8B"):
        load_pair("somebody/else", "auto")


def test_auto_says_what_it_picked_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def stop(*_: object) -> None:
        raise ValueError("stopped")

    monkeypatch.setattr("reanchor.loading.load_target", stop)
    with pytest.raises(ValueError, match="stopped"):
        load_pair("Qwen/Qwen3-4B", "auto", say=said.append)
    assert said == ["drafter for Qwen/Qwen3-4B: z-lab/Qwen3-4B-DFlash-b16 (DFlash)"]


@pytest.mark.parametrize(
    ("drafter", "thinking", "warned"),
    [
        ("z-lab/Qwen3-8B-DFlash-b16", True, "--no-thinking"),
        ("z-lab/Qwen3-8B-DFlash-b16", False, None),
        ("z-lab/Qwen3.5-35B-A3B-DFlash", False, "--thinking"),
        ("z-lab/gpt-oss-20b-DFlash", True, None),
        ("/models/Qwen3-8B-Domino-b16", True, "--no-thinking"),
        ("somebody/else", True, None),
    ],
)
def test_thinking_mismatch(drafter: str, thinking: bool, warned: str | None) -> None:
    said = thinking_mismatch(drafter, thinking)
    assert said is None if warned is None else said is not None and warned in said


def test_no_drafter_is_listed_twice() -> None:
    assert len({entry.drafter for entry in TABLE}) == len(TABLE)
    assert all(find(entry.drafter) is entry for entry in TABLE)


def test_the_docs_show_the_table() -> None:
    shown = {True: "on", False: "off", None: ""}
    page = (ROOT / "docs" / "drafters.md").read_text().splitlines()
    rows = [line for line in page if line.startswith("| ") and "/" in line.split("|")[1]]
    assert rows == [
        f"| {each.target} | {each.drafter} | {each.family} | {shown[each.thinking]} |" for each in TABLE
    ]
