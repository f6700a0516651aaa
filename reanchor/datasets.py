"""Prompts by name: where a set lies, and how one of its rows becomes turns, in the template the field sends.

Sources: the hub, a folder of JSONL files, any own file, and the prompts that ship. A file's `turns` are sent as
they stand: only rows of the hub get a template here. It knows no tokenizer and no chat format.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reanchor.files import TEXT_BYTES, check_regular, named_path

DEMO = "demo"
DEMO_FILE = Path(__file__).parent / "assets" / "demo-prompts.jsonl"
LIMIT = 100  # prompts a set gives unless it is one that is always taken whole
EXTRA = "pip install 'reanchor-decoding[bench]'"
Row = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """User turns, ready to be sent one after another, and the answer where the source has one."""

    id: str
    turns: tuple[str, ...]
    reference: str | None = None


@dataclass(frozen=True)
class DatasetSource:
    """A set on the hub: the arguments of `datasets.load_dataset`, and what is made of a row."""

    place: tuple[str, ...]
    split: str
    turns: Callable[[Row], list[str]]
    reference: Callable[[Row], Any] = lambda row: None
    key: str | None = None  # field with the row's id; None numbers the rows
    files: tuple[str, ...] = ()
    whole: bool = False  # small: taken whole unless a limit is asked for

    @property
    def address(self) -> str:
        return " ".join((*self.place, self.split, *self.files))


def math_turns(question: str) -> list[str]:
    return [f"{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}."]


def humaneval_turns(row: Row) -> list[str]:
    task = "Write a solution to the following problem and make sure that it passes the tests:"
    return [f"{task}\n```python\n{row['prompt']}\n```"]


def livecodebench_turns(row: Row) -> list[str]:
    role = (
        "You are an expert Python programmer. You will be given a question (problem specification) and will "
        "generate a correct Python program that matches the specification and passes all tests. You will NOT "
        "return anything except for the program"
    )
    starter = row.get("starter_code")
    form = "Use the following code structure:" if starter else "Write your code in the following format:"
    return [
        f"{role}\n\n### Question:\n{row['question_content']}\n\n### Format: {form}\n```python\n"
        f"{starter or '# YOUR CODE HERE'}\n```\n\n### Answer: (use the provided format with backticks)"
    ]


def alpaca_turns(row: Row) -> list[str]:
    extra = f"\n\nInput:\n{row['input']}" if row.get("input") else ""
    return [row["instruction"] + extra]


def gsm8k_answer(row: Row) -> str:
    return row["answer"].rpartition("####")[2].strip()


def field_of(name: str) -> Callable[[Row], Any]:
    return lambda row: row[name]


def only_turn(row: Row) -> list[str]:
    return [row["prompt"]]


def speculators(subset: str) -> DatasetSource:
    return DatasetSource(
        ("RedHatAI/speculator_benchmarks",), "train", only_turn, files=(f"{subset}.jsonl",), whole=True
    )


SOURCES = {
    "gsm8k": DatasetSource(
        ("openai/gsm8k", "main"), "test", lambda row: math_turns(row["question"]), gsm8k_answer
    ),
    "math500": DatasetSource(
        ("HuggingFaceH4/MATH-500",),
        "test",
        lambda row: math_turns(row["problem"]),
        field_of("answer"),
        "unique_id",
    ),
    "aime25": DatasetSource(
        ("MathArena/aime_2025",),
        "train",
        lambda row: math_turns(row["problem"]),
        field_of("answer"),
        "problem_idx",
        whole=True,
    ),
    "humaneval": DatasetSource(
        ("openai/openai_humaneval",), "test", humaneval_turns, field_of("canonical_solution"), "task_id"
    ),
    "mbpp": DatasetSource(
        ("google-research-datasets/mbpp", "sanitized"), "test", only_turn, field_of("code"), "task_id"
    ),
    "livecodebench": DatasetSource(
        ("json",),
        "train",
        livecodebench_turns,
        key="question_id",
        files=tuple(
            f"hf://datasets/livecodebench/code_generation_lite/test{part}.jsonl"
            for part in ("", 2, 3, 4, 5, 6)
        ),
    ),
    "mt_bench": DatasetSource(
        ("HuggingFaceH4/mt_bench_prompts",), "train", field_of("prompt"), key="prompt_id", whole=True
    ),
    "alpaca": DatasetSource(("tatsu-lab/alpaca",), "train", alpaca_turns, field_of("output")),
    "ultrachat": DatasetSource(("HuggingFaceH4/ultrachat_200k",), "train_sft", only_turn, key="prompt_id"),
    "magpie": DatasetSource(
        ("Magpie-Align/Magpie-Llama-3.1-Pro-300K-Filtered",),
        "train",
        lambda row: [row["instruction"]],
        key="uuid",
    ),
    "speculators-humaneval": speculators("HumanEval"),
    "speculators-tool_call": speculators("tool_call"),
    "speculators-math_reasoning": speculators("math_reasoning"),
    "speculators-mt_bench": speculators("question"),
    "speculators-qa": speculators("qa"),
    "speculators-rag": speculators("rag"),
    "speculators-summarization": speculators("summarization"),
    "speculators-translation": speculators("translation"),
}
SUITES = {
    "reanchor": (
        "gsm8k", "math500", "aime25", "humaneval", "mbpp", "livecodebench", "mt_bench", "alpaca",
    ),
    "speculators": tuple(name for name in SOURCES if name.startswith("speculators-")),
}  # fmt: skip


@dataclass(frozen=True)
class PromptSet:
    """The prompts one dataset contributes to a run."""

    name: str
    prompts: tuple[Prompt, ...]
    of: int = field(default=0)  # rows the source has
    source: str = ""  # where it lies: a file, the hub's address, or what ships


def load_set(
    name: str, data_dir: str | Path | None = None, limit: int | None = None, seed: int = 0
) -> PromptSet:
    """A set by name, from `data_dir` where one is given, else what ships or the hub."""
    if name == DEMO and data_dir is None:
        rows: Iterable[Prompt] = read_file(DEMO_FILE)
        source = "shipped"
    elif data_dir is not None:
        file = file_of(name, named_path(data_dir, "--data-dir"))
        rows, source = read_file(file), str(file)
    elif name in SOURCES:
        rows, source = fetch(name, SOURCES[name]), SOURCES[name].address
    else:
        known = ", ".join((DEMO, *SOURCES))
        raise ValueError(
            f"no dataset {name!r}: known are {known}; an own file is given with --prompts FILE or --data-dir"
        )
    return chosen(name, tuple(rows), limit, seed, source)


def load_file(path: str | Path, limit: int | None = None, seed: int = 0) -> PromptSet:
    """A set of one's own: a JSONL file with `turns`, and perhaps `id` and `reference`, in every line."""
    file = named_path(path, "--prompts")
    return chosen(file.stem, tuple(read_file(file)), limit, seed, str(file))


def chosen(
    name: str, prompts: tuple[Prompt, ...], limit: int | None, seed: int, source: str = ""
) -> PromptSet:
    """A random choice of `limit` prompts in the source's order; a smaller limit chooses among the same ones."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 prompt, got {limit}")
    whole = name in SOURCES and SOURCES[name].whole
    count = limit if limit is not None else len(prompts) if whole else LIMIT
    order = list(range(len(prompts)))
    random.Random(seed).shuffle(order)
    return PromptSet(name, tuple(prompts[index] for index in sorted(order[:count])), len(prompts), source)


def file_of(name: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise ValueError(f"--data-dir {folder} is no folder; give the one that holds {name}.jsonl")
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        there = ", ".join(sorted(each.stem for each in folder.glob("*.jsonl"))) or "no .jsonl file"
        raise ValueError(f"no {name}.jsonl in {folder}, which has {there}")
    return path


def read_file(path: Path) -> Iterator[Prompt]:
    try:
        check_regular(path, TEXT_BYTES)
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the prompts of {path}: {error}") from error
    seen: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        prompt = prompt_of(line, f"{path}, line {number}", str(number))
        if prompt.id in seen:
            raise ValueError(f"{path}, line {number}: the id {prompt.id!r} is there twice")
        seen.add(prompt.id)
        yield prompt
    if not seen:
        raise ValueError(f"{path} holds no prompt")


def prompt_of(line: str, where: str, number: str) -> Prompt:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} holds half of a character (a lone surrogate), which is no text") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    if not isinstance(row, dict) or "turns" not in row:
        raise ValueError(f"{where} has no field 'turns', the list of user turns")
    turns = row["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ValueError(f"{where}: 'turns' must be a list of texts, none empty, got {turns!r:.80}")
    reference, own = row.get("reference"), row.get("id")
    return Prompt(
        number if own is None else str(own), tuple(turns), None if reference is None else as_text(reference)
    )


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def fetch(name: str, source: DatasetSource) -> Iterator[Prompt]:
    """Rows of the hub as prompts. ValueError when the library or the network isn't there."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(
            f"the dataset {name!r} comes from the hub, for which {EXTRA}; or give --data-dir"
        ) from error
    files = {"data_files": list(source.files)} if source.files else {}
    try:
        rows = load_dataset(*source.place, split=source.split, **files)
    except Exception as error:  # the library raises what its many parts raise
        raise ValueError(
            f"cannot fetch the dataset {name!r} ({type(error).__name__}: {error}); check the network, or give "
            f"--data-dir with a {name}.jsonl"
        ) from error
    for number, row in enumerate(rows):
        yield from_row(name, source, row, number)


def from_row(name: str, source: DatasetSource, row: Row, number: int) -> Prompt:
    try:
        key = number if source.key is None else row[source.key]
        reference = source.reference(row)
        return Prompt(
            f"{name}-{key}", tuple(source.turns(row)), None if reference is None else as_text(reference)
        )
    except KeyError as error:
        raise ValueError(
            f"row {number} of the dataset {name!r} has no field {error}: the hub's copy has changed; "
            "give --data-dir with a file of turns"
        ) from error
