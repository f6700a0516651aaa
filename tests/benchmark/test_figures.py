"""JSON that is JSON and CSV that is one table, holding what the tables say."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

from reanchor.benchmark.comparison import contrasts
from reanchor_cli.figures import csv_of, json_of
from tests.benchmark.runs import ablated, fault, record, results
from tests.benchmark.scripted import outcome_of, record_of


def refused(word: str):
    raise AssertionError(f"{word} is no JSON")


def read(text: str) -> dict:
    return json.loads(text, parse_constant=refused)


def rows(*runs) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_of(runs))))


def test_two_files_are_one_csv():
    first = results([record(("plain", "dflash"))])
    second = replace(results([record(("plain", "reanchor"))]), path=Path("other.jsonl"))
    found = rows(first, second)
    assert [(row["file"], row["method"]) for row in found] == [
        ("r.jsonl", "plain"), ("r.jsonl", "dflash"), ("other.jsonl", "plain"), ("other.jsonl", "reanchor"),
    ]  # fmt: skip
    assert float(found[1]["break_even"]) == float(found[1]["tau"]) / float(found[1]["speedup"])


def test_csv_has_counts_and_knobs():
    made = ablated(0.0, "a", **{"all sites": (2, 2)})
    made.turns[0]["all sites"].counts.update(groups=10, eligible=8, won=7)
    swept = results([record(("plain", "ddtree max_nodes=8", "auto max_nodes=none"))])
    counted, plain, ddtree, auto = rows(results([made], ablation="earliest"), swept)[1:]
    assert (counted["count_groups"], counted["count_eligible"], counted["count_won"]) == ("10", "8", "7")
    assert [(row["knob"], row["value"]) for row in (plain, ddtree, auto)] == [
        ("", ""), ("max_nodes", "8"), ("max_nodes", "none"),
    ]  # fmt: skip
    assert plain["count_won"] == ""


def test_json_has_what_an_ablation_says():
    made = [ablated(at, name) for at in (0.0, 1.0) for name in ("a", "b")]
    (run,) = read(json_of([results(made, ablation="scope")], []))["runs"]
    by = {(each["row"], each["dataset"], each["temperature"]): each["value"] for each in run["ablation"]}
    assert by["full", "a", 0.0] == by["full", "mean", 1.0] == 3.0
    attach = [ablated(0.0, "a", **dict.fromkeys(("fixed", "random", "longest", "earliest"), (2, 2)))]
    (run,) = read(json_of([results(attach, ablation="attach")], []))["runs"]
    assert [each["paper"] for each in run["ablation"] if each["row"] == "fixed"] == [None, "7.24"]


def test_json_has_gains_break_evens_and_differences():
    made = record(("plain", "dflash", "reanchor"))
    made.differences.append(fault("reanchor", kind=False))
    costs = {"context": 1, "verify": {"1": 1.0, "8": 2.0}, "draft": {"1": 0.5}}
    (run,) = read(json_of([results([made], costs=costs)], []))["runs"]
    assert run["gains"] == [
        {"dataset": "own", "temperature": 0.0, "tau": 0.0, "speedup": 0.0, "paper": "+15.2 % / +13.4 %"}
    ]
    assert [each["break_even"] for each in run["costs"]] == [1.5, 2.5]
    assert run["cells"][1]["break_even"] == run["cells"][1]["tau"] / run["cells"][1]["speedup"]
    (difference,) = run["differences"]
    assert (difference["id"], difference["loss"], difference["fault"]) == ("p0", 0.456, False)


def test_what_is_no_number_is_null():
    made = results([record_of(plain=outcome_of([1]))])
    (found,) = contrasts(made.records, made.records)
    text = json_of([made], [replace(found, taus=(float("nan"), 2.0))])
    assert read(text)["comparison"][0]["taus"] == [None, 2.0]
