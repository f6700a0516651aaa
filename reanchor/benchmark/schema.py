"""Schema check of results files: lines have the shape of the dataclasses they become. It knows JSON values and type
annotations, no figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from reanchor.benchmark.outcome import Outcome
from reanchor.benchmark.record import PromptRecord
from reanchor.stats import RoundStats

KINDS: dict[Any, set[type]] = {
    str: {str}, int: {int}, float: {float, int}, bool: {bool}, NoneType: {NoneType},
}  # fmt: skip
hints_of = cache(get_type_hints)


def trouble_of(given: Mapping[str, Any], methods: Sequence[str]) -> str | None:
    """What keeps an object from being the record of a run of these methods; None when nothing does."""
    found = object_trouble(given, PromptRecord, "", {"turns": list[dict[str, Any]]})
    if found:
        return found
    turns = given["turns"]
    if not turns or len(turns) != len(given["prompt_tokens"]):
        return f"{len(turns)} turns and {len(given['prompt_tokens'])} numbers of prompt_tokens"
    strange = sorted({each["method"] for each in given["differences"]} - set(methods))
    if strange:
        return f"a difference of {strange[0]!r}, which the run has not"
    return first(turn_trouble(turn, methods, f"turns[{at}]") for at, turn in enumerate(turns))


def turn_trouble(turn: Mapping[str, Any], methods: Sequence[str], where: str) -> str | None:
    if turn.keys() != set(methods):
        return f"{where} has the methods {', '.join(turn)}, the run {', '.join(methods)}"
    return first(
        object_trouble(each, Outcome, f"{where}.{name}", {"rounds": dict[str, Any]})
        or columns_trouble(each["rounds"], f"{where}.{name}.rounds")
        for name, each in turn.items()
    )


def columns_trouble(columns: Mapping[str, Any], where: str) -> str | None:
    """Rounds lie by column."""
    if not columns:
        return None
    hints: dict[str, Any] = {name: list[hint] for name, hint in hints_of(RoundStats).items()}  # type: ignore[valid-type]
    found = object_trouble(columns, RoundStats, where, {**hints, "stages": dict[str, list[float]]})
    if found:
        return found
    parts = [column for column in columns.values() if isinstance(column, list)]
    lengths = {len(column) for column in (*parts, *columns["stages"].values())}
    return None if len(lengths) == 1 else f"{where} has columns of different length"


def object_trouble(value: Any, kind: type, where: str, instead: Mapping[str, Any]) -> str | None:
    """instead: annotations of fields that lie in a file otherwise than in memory."""
    if not isinstance(value, dict):
        return wrong(value, kind, where)
    needed = [each.name for each in fields(kind) if each.default is each.default_factory is MISSING]
    missing = [name for name in needed if name not in value]
    if missing:
        return f"no {dotted(where, missing[0])}"
    hints = {**hints_of(kind), **instead}
    return first(
        trouble(value[name], hint, dotted(where, name)) for name, hint in hints.items() if name in value
    )


def trouble(value: Any, hint: Any, where: str) -> str | None:
    """What keeps a JSON value from being of a type."""
    if hint is Any:
        return None
    if is_dataclass(hint) and isinstance(hint, type):
        return object_trouble(value, hint, where, {})
    origin, parts = get_origin(hint), get_args(hint)
    if origin in PARTS:
        return PARTS[origin](value, hint, where)
    kinds = set().union(*(KINDS[each] for each in parts)) if origin in (Union, UnionType) else KINDS[hint]
    return None if type(value) in kinds else wrong(value, hint, where)


def list_trouble(value: Any, hint: Any, where: str) -> str | None:
    (part,) = get_args(hint)
    if not isinstance(value, list):
        return wrong(value, hint, where)
    if part in KINDS and set(map(type, value)) <= KINDS[part]:  # long lists of numbers, at once
        return None
    return first(trouble(each, part, f"{where}[{at}]") for at, each in enumerate(value))


def tuple_trouble(value: Any, hint: Any, where: str) -> str | None:
    parts = get_args(hint)
    if not isinstance(value, list) or len(value) != len(parts):
        return wrong(value, hint, where)
    return first(trouble(*each, where) for each in zip(value, parts, strict=True))


def dict_trouble(value: Any, hint: Any, where: str) -> str | None:
    if not isinstance(value, dict):
        return wrong(value, hint, where)
    return first(trouble(each, get_args(hint)[1], dotted(where, name)) for name, each in value.items())


PARTS: dict[Any, Callable[[Any, Any, str], str | None]] = {
    list: list_trouble, tuple: tuple_trouble, dict: dict_trouble,
}  # fmt: skip


def first(found: Iterable[str | None]) -> str | None:
    return next((each for each in found if each), None)


def dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def wrong(value: Any, hint: Any, where: str) -> str:
    wanted = hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
    return f"{where} is {value!r:.60}, not {wanted.replace('typing.', '')}"
