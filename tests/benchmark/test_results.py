"""A results file that is damaged, or another run's, is refused and left as it is."""

from __future__ import annotations

import json

import pytest

from reanchor.benchmark.results import open_results, read_results
from tests.benchmark.players import outcome_of, record_of

HEADER = {"target": "t", "started": "now"}


@pytest.fixture
def path(tmp_path):
    results = open_results(tmp_path / "deep" / "run.jsonl", HEADER)
    for name in ("a", "b", "c"):
        results.append(record_of(id=name, plain=outcome_of([1, 1])))
    return results.path


def test_what_was_written_is_read(path):
    found = read_results(path)
    assert found.header == {"format": 1, **HEADER}
    assert [each.id for each in found.records] == ["a", "b", "c"]
    assert found.done == {("own", 0.0, name) for name in ("a", "b", "c")}


def damage(path, number: int, line: str) -> None:
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "number, line, said",
    [
        (3, '{"dataset": "own", "id"', "line 3 is damaged"),
        (2, "[]", "line 2 is damaged"),
        (4, json.dumps({"dataset": "own", "id": "c"}), "line 4 is damaged .*turns"),
        (1, '{"format": 99}', "no results file of this version"),
        (1, "hello", "line 1 is damaged"),
    ],
)
def test_damage_is_named_and_nothing_is_overwritten(path, number, line, said):
    damage(path, number, line)
    before = path.read_bytes()
    for use in (read_results, lambda place: open_results(place, HEADER)):
        with pytest.raises(ValueError, match=said):
            use(path)
    assert path.read_bytes() == before


def test_a_record_without_a_field_of_its_outcome(path):
    lines = path.read_text().splitlines()
    row = json.loads(lines[1])
    del row["turns"][0]["plain"]["passes"]
    damage(path, 2, json.dumps(row))
    with pytest.raises(ValueError, match="line 2 is damaged .*passes"):
        read_results(path)


def test_an_empty_file_and_one_cut_in_its_header(tmp_path):
    for text in ("", '{"format": 1'):
        path = tmp_path / "run.jsonl"
        path.write_text(text)
        with pytest.raises(ValueError, match="first line must be the header"):
            open_results(path, HEADER)
        assert path.read_text() == text


def test_another_run_is_refused(path):
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match="another run \\(target: 't' there, 'u' now\\); give another --output"
    ):
        open_results(path, {**HEADER, "target": "u"})
    assert path.read_bytes() == before
