"""A results file that is damaged, or another run's, is refused and left as it is."""

from __future__ import annotations

import json

import pytest

from reanchor.benchmark import outcome
from reanchor.benchmark.results import open_results, read_results
from reanchor.lock import locked
from tests.benchmark import scripted
from tests.benchmark.scripted import outcome_of, record_of

COSTS = {"context": 3, "verify": {"1": 0.1}, "draft": {"1": 0.1}}
HEADER = {**scripted.HEADER, "started": "now"}


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
        (4, json.dumps({"dataset": "own", "id": "c"}), "line 4 is damaged .*no temperature"),
        (1, '{"format": 99}', "no results file of this version"),
        (1, "hello", "no results file of this version"),
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


RECORD = {
    "dataset": "own", "id": "z", "temperature": 0.0, "order": ["plain"], "prompt_tokens": [5],
    "turns": [{"plain": outcome.to_dict(outcome_of([1, 1]))}], "differences": [], "right": {},
}  # fmt: skip
OUTCOME = RECORD["turns"][0]["plain"]


def turn_with(**changes) -> dict:
    return {"turns": [{"plain": {**OUTCOME, **changes}}]}


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"turns": "text"}, "turns is 'text', not list"),
        ({"turns": []}, "0 turns and 1 numbers"),
        ({"turns": [{}]}, "has the methods , the run plain"),
        ({"turns": [{"other": OUTCOME}]}, "has the methods other, the run plain"),
        ({"turns": [{"plain": "text"}]}, "turns.0..plain is 'text', not Outcome"),
        ({"right": None}, "right is None"),
        ({"right": {"plain": 1}}, "right.plain is 1, not bool"),
        ({"dataset": []}, "dataset is .., not str"),
        ({"dataset": None}, "dataset is None, not str"),
        ({"temperature": "warm"}, "temperature is 'warm', not float"),
        ({"prompt_tokens": 7}, "prompt_tokens is 7"),
        ({"prompt_tokens": [5, 6]}, "1 turns and 2 numbers"),
        ({"differences": [{"method": "plain"}]}, "no differences.0..turn"),
        (turn_with(passes="x"), "turns.0..plain.passes is 'x', not int"),
        (turn_with(passes=True), "passes is True, not int"),
        (turn_with(counts=None), "counts is None"),
        (turn_with(tokens="text"), "tokens is 'text'"),
        (turn_with(tokens=[1, "2"]), "tokens.1. is '2', not int"),
        (turn_with(decode_seconds="1"), "decode_seconds is '1', not float"),
        (turn_with(rounds=[]), "rounds is .., not dict"),
        (turn_with(rounds={"tokens": [1]}), "no turns.0..plain.rounds.accepted"),
        (turn_with(rounds={**OUTCOME["rounds"], "nodes": [4]}), "columns of different length"),
        (turn_with(rounds={**OUTCOME["rounds"], "nodes": [4, None]}), "nodes.1. is None, not int"),
        (turn_with(rounds={**OUTCOME["rounds"], "edges": [[], [[0.5]]]}), "not tuple.float, bool"),
        (turn_with(rounds={**OUTCOME["rounds"], "stages": {"verify": 3}}), "stages.verify is 3"),
    ],
)
def test_a_record_of_another_shape_is_named(path, changes, said):
    with path.open("a") as stream:
        stream.write(json.dumps({**RECORD, **changes}) + "\n")
    with pytest.raises(ValueError, match=f"line 5 is damaged .*{said}.* restore the file"):
        read_results(path)


def test_a_field_of_a_later_version_is_no_damage(path):
    for changes in ({"strange": 1}, turn_with(strange=1)):
        damage(path, 4, json.dumps({**RECORD, **changes}))
        with pytest.raises(ValueError, match="line 4 has a field that .*strange.*; read it with the version"):
            read_results(path)


def test_a_record_as_it_should_be_is_read(path):
    edges = {"edges": [[], [[0.5, True], [1, False]]], "expected": [None, 1.5]}
    with path.open("a") as stream:
        stream.write(json.dumps({**RECORD, **turn_with(rounds={**OUTCOME["rounds"], **edges})}) + "\n")
    assert read_results(path).records[-1].outcomes("plain")[0].rounds[1].expected == 1.5


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"target": None}, "target is None, not str"),
        ({"drafter": 3}, "drafter is 3"),
        ({"methods": "plain"}, "methods is 'plain'"),
        ({"prompts": ["a"]}, "prompts is"),
        ({"ablation": "weather"}, "no ablation 'weather': known are components"),
        ({"ablation": "agreement"}, "without 'DFlash'"),
        ({"sweep": ["speed=1"]}, "its sweep cannot be shown .*KNOB=VALUE"),
        ({"costs": {**COSTS, "verify": {"1": "fast"}}}, "costs.verify.1 is 'fast', not float"),
        ({"costs": {}}, "no costs.context"),
        (
            {"sweep": ["max_nodes=4"], "costs": {**COSTS, "draft": {"1": 0}}},
            "its sweep cannot .*ZeroDivision",
        ),
        ({"sweep": ["max_nodes=4"]}, "its sweep cannot be shown .KeyError: 'costs'"),
        (
            {"sweep": ["max_nodes=4"], "costs": {**COSTS, "verify": {}}},
            "its sweep cannot be shown .KeyError: 1",
        ),
    ],
)
def test_a_header_that_cannot_be_shown_is_named(path, changes, said):
    damage(path, 1, json.dumps({"format": 1, **HEADER, **changes}))
    with pytest.raises(ValueError, match=f"line 1 is damaged .*{said}.* move it away and measure again"):
        read_results(path)


@pytest.mark.parametrize("name", ["target", "drafter", "dtype", "methods"])
def test_a_header_without_a_field_is_named(path, name):
    damage(path, 1, json.dumps({"format": 1, **{key: HEADER[key] for key in HEADER if key != name}}))
    with pytest.raises(ValueError, match=f"line 1 is damaged .no {name}"):
        read_results(path)


def test_a_repeated_prompt_is_refused(path):
    with path.open("a") as stream:
        stream.write(path.read_text().splitlines()[2] + "\n")
    with pytest.raises(ValueError, match="line 5 is damaged .it repeats the prompt of line 3.; delete one"):
        read_results(path)


def test_a_whole_last_line_without_its_end_counts(path):
    before = path.read_text()
    path.write_text(before.rstrip("\n"))
    assert [each.id for each in read_results(path).records] == ["a", "b", "c"]
    assert [each.id for each in open_results(path, HEADER).records] == ["a", "b", "c"]
    assert path.read_text() == before


def test_a_byte_order_mark_is_no_damage(path):
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(open_results(path, HEADER).records) == 3


def test_an_empty_file_and_one_cut_in_its_header_are_begun(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("")
    with pytest.raises(ValueError, match="no results file"):
        read_results(path)
    assert open_results(path, HEADER).records == [] and read_results(path).header["target"] == "t"
    path.write_text('{"format": 1')
    assert open_results(path, HEADER).records == [] and read_results(path).header["target"] == "t"


def test_one_run_at_a_time_writes_a_file(tmp_path):
    path = tmp_path / "deep" / "run.jsonl"
    with locked(path):
        open_results(path, HEADER).append(record_of(plain=outcome_of([1])))
        with (
            pytest.raises(ValueError, match="another run is writing .*run.jsonl; wait for its end"),
            locked(path),
        ):
            pass
    with locked(path):
        assert len(open_results(path, HEADER).records) == 1


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "afile").write_text("mine")
    for path in (tmp_path / "afile" / "x.jsonl", tmp_path):
        with pytest.raises(ValueError, match="cannot be written to .*; give another --output"), locked(path):
            pass


def test_another_run_is_refused(path):
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match="another run \\(target: 't' there, 'u' now\\); give another --output"
    ):
        open_results(path, {**HEADER, "target": "u"})
    assert path.read_bytes() == before


def test_a_difference_inside_of_a_field_is_named(tmp_path):
    header = {**HEADER, "weights": {"target": "a", "drafter": "b"}, "texts": {"own": "c"}}
    path = open_results(tmp_path / "run.jsonl", header).path
    with pytest.raises(ValueError, match="another run .weights.drafter: 'b' there, 'd' now.; give"):
        open_results(path, {**header, "weights": {"target": "a", "drafter": "d"}})
    with pytest.raises(ValueError, match="texts.own: 'c' there, None now"):
        open_results(path, {**header, "texts": {}})
