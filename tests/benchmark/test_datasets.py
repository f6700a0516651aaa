"""Every set's template on a row of our own making, files of every kind of damage, and a hub that isn't there."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from reanchor.benchmark.answers import final, is_comparable, is_right, unjudged
from reanchor.datasets import DEMO, SOURCES, SUITES, load_file, load_set

STEPS = "\nPlease reason step by step, and put your final answer within \\boxed{}."
ROLE = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate "
    "a correct Python program that matches the specification and passes all tests. You will NOT return anything "
    "except for the program"
)
# set -> (a row as the hub has it, the turns sent, the reference)
ROWS = {
    "gsm8k": ({"question": "2+2?", "answer": "Two and two.\n#### 4"}, ["2+2?" + STEPS], "4"),
    "math500": (
        {"problem": "$1+1$?", "answer": "2", "solution": "s", "unique_id": "u"}, ["$1+1$?" + STEPS], "2"
    ),
    "aime25": ({"problem_idx": 3, "problem": "p", "answer": 70, "problem_type": []}, ["p" + STEPS], "70"),
    "humaneval": (
        {"task_id": "H/0", "prompt": "def f():\n", "canonical_solution": "    pass", "test": "t"},
        [
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            "```python\ndef f():\n\n```"
        ],
        "    pass",
    ),
    "mbpp": ({"task_id": 1, "prompt": "Write f.", "code": "c", "test_list": []}, ["Write f."], "c"),
    "livecodebench": (
        {"question_id": "q", "question_content": "Add.", "starter_code": "class S:\n"},
        [
            ROLE + "\n\n### Question:\nAdd.\n\n### Format: Use the following code structure:\n```python\nclass S:\n\n"
            "```\n\n### Answer: (use the provided format with backticks)"
        ],
        None,
    ),
    "mt_bench": ({"prompt_id": 7, "prompt": ["One.", "Two."], "category": "c"}, ["One.", "Two."], None),
    "alpaca": (
        {"instruction": "Shorten.", "input": "Long.", "output": "L."}, ["Shorten.\n\nInput:\nLong."], "L."
    ),
    "ultrachat": ({"prompt_id": "h", "prompt": "Chat.", "messages": []}, ["Chat."], None),
    "magpie": ({"uuid": "m", "instruction": "Do.", "response": "r"}, ["Do."], None),
    **{name: ({"prompt": "Say."}, ["Say."], None) for name in SUITES["speculators"]},
}  # fmt: skip


class Hub(ModuleType):
    """A stand-in for the library `datasets`."""

    def __init__(self, rows) -> None:
        super().__init__("datasets")
        self.rows, self.asked = rows, []

    def load_dataset(self, *place, **options):
        self.asked.append((place, options))
        if isinstance(self.rows, Exception):
            raise self.rows
        return self.rows


@pytest.mark.parametrize("name", SOURCES)
def test_templates(name, monkeypatch):
    row, turns, reference = ROWS[name]
    hub = Hub([row])
    monkeypatch.setitem(sys.modules, "datasets", hub)
    (prompt,) = load_set(name).prompts
    assert list(prompt.turns) == turns and prompt.reference == reference
    ((place, options),) = hub.asked
    assert place == SOURCES[name].place and options["split"] == SOURCES[name].split
    assert options.get("data_files", []) == list(SOURCES[name].files)


def test_without_starter_code_the_place_for_it_is_marked(monkeypatch):
    row = {"question_id": "q", "question_content": "Add.", "starter_code": ""}
    monkeypatch.setitem(sys.modules, "datasets", Hub([row]))
    (prompt,) = load_set("livecodebench").prompts
    assert "Write your code in the following format:\n```python\n# YOUR CODE HERE\n```" in prompt.turns[0]


def test_the_suites_are_the_papers():
    assert len(SUITES["reanchor"]) == len(SUITES["speculators"]) == 8
    assert {name for suite in SUITES.values() for name in suite} <= set(SOURCES)


def test_a_limit_chooses_the_same_rows_every_time(monkeypatch):
    rows = [{"prompt": f"Row {at}.", "code": "", "task_id": at} for at in range(300)]
    monkeypatch.setitem(sys.modules, "datasets", Hub(rows))
    usual, ten, again = (load_set("mbpp", limit=limit) for limit in (None, 10, 10))
    assert (len(usual.prompts), usual.of) == (100, 300)
    assert ten == again and set(ten.prompts) < set(usual.prompts)
    assert load_set("mbpp", limit=10, seed=1) != ten
    order = [int(prompt.id.rpartition("-")[2]) for prompt in ten.prompts]
    assert order == sorted(order)
    monkeypatch.setitem(
        sys.modules, "datasets", Hub([ROWS["aime25"][0] | {"problem_idx": at} for at in range(130)])
    )
    assert len(load_set("aime25").prompts) == 130  # always whole, unless told otherwise
    assert len(load_set("aime25", limit=3).prompts) == 3


@pytest.mark.parametrize(
    "trouble, said",
    [
        (ConnectionError("no route"), "cannot fetch the dataset 'gsm8k' .*no route.*--data-dir"),
        ([{"problem": "p"}], "row 0 of the dataset 'gsm8k' has no field"),
    ],
)
def test_a_hub_in_trouble(trouble, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", Hub(trouble))
    with pytest.raises(ValueError, match=said):
        load_set("gsm8k")


def test_the_real_library_reads_files(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    for part in (1, 2):
        row = {"question_id": f"q{part}", "question_content": "Add.", "starter_code": ""}
        (tmp_path / f"{part}.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    files = tuple(str(tmp_path / f"{part}.jsonl") for part in (1, 2))
    monkeypatch.setitem(SOURCES, "livecodebench", replace(SOURCES["livecodebench"], files=files))
    assert [prompt.id for prompt in load_set("livecodebench").prompts] == [
        "livecodebench-q1",
        "livecodebench-q2",
    ]


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install 'reanchor-decoding\\[bench\\]'; or give --data-dir"):
        load_set("gsm8k")


def test_a_files_turns_are_sent_as_they_stand(tmp_path):
    row = {"id": "a", "turns": ["2+2?" + STEPS], "reference": "4", "question": "2+2?"}
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps(row) + "\n")
    (prompt,) = load_set("gsm8k", tmp_path).prompts
    assert prompt.turns == ("2+2?" + STEPS,) and (prompt.id, prompt.reference) == ("a", "4")


@pytest.mark.parametrize(
    "text, said",
    [
        ('{"turns": ["a"]}\n{"turns": ', "line 2 is not JSON"),
        ('{"id": "x", "prompt": "a"}', "line 1 has no field 'turns'"),
        ('["a"]', "line 1 has no field 'turns'"),
        ('{"turns": "a"}', "'turns' must be a list of texts"),
        ('{"turns": []}', "'turns' must be a list of texts"),
        ('{"turns": ["a", ""]}', "none empty"),
        ('{"id": 1, "turns": ["a"]}\n{"id": 1, "turns": ["b"]}', "line 2: the id '1' is there twice"),
        ("\n\n", "holds no prompt"),
    ],
)
def test_damaged_files_are_named_with_the_line(text, said, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        load_file(path)


def test_an_id_of_null_is_none_and_a_byte_order_mark_is_no_damage(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": null, "turns": ["a"]}\n{"id": 7, "turns": ["b"]}\n', encoding="utf-8-sig")
    assert [each.id for each in load_file(path).prompts] == ["1", "7"]


def test_what_ships():
    shipped = load_set(DEMO)
    assert (
        len(shipped.prompts) == 16 and len({prompt.id.rpartition("-")[0] for prompt in shipped.prompts}) == 8
    )
    assert any(len(prompt.turns) > 1 for prompt in shipped.prompts)


@pytest.mark.parametrize(
    "text, reference, verdict",
    [
        ("So the answer is \\boxed{42}.", "42", True),
        ("\\boxed{1} no, \\boxed{ \\frac{3}{2} }", "\\dfrac{3}{2}", True),
        ("It costs $1,234.00 in all.", "1234", True),
        ("first 5 and then 6", "5", False),
        ("\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}", "(3,\\frac{\\pi}{2})", True),
        ("\\boxed{90^\\circ}", "90", True),
        ("no number at all", "7", False),
        ("\\boxed{7", "7", True),  # cut short, the number still stands there
        ("-3.50", "-3.5", True),
    ],
)
def test_final_answers(text, reference, verdict):
    assert is_right(text, reference) is verdict


@pytest.mark.parametrize(
    "dataset, reference, comparable",
    [
        ("gsm8k", "4", True),
        ("gsm8k", None, False),
        ("math500", "\\frac{1}{2}", True),
        ("demo", "18", True),
        ("own", "-1,234.50", True),
        ("own", "a long story of 7 dwarfs", False),
        ("own", None, False),
        ("alpaca", "7", False),  # a text that happens to be a number
        ("humaneval", "7", False),
    ],
)
def test_what_can_be_compared(dataset, reference, comparable):
    assert is_comparable(dataset, reference) is comparable


def test_why_nothing_was_judged_is_said():
    assert unjudged("mbpp") == "not executed" and unjudged("mt_bench") == "no reference"
    assert final("nothing") is None
