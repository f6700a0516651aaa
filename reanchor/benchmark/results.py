"""A results file: a header line with all that a figure depends on, then one line a finished prompt.

Lines are appended whole and never changed, so that an interrupted run goes on where it stopped. A file of
another run, or a damaged one, is refused and left as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reanchor.benchmark import header as headers
from reanchor.benchmark import record, schema
from reanchor.benchmark.record import Key, PromptRecord
from reanchor.benchmark.skip import Skip

FORMAT = 1
INCIDENTAL = ("started", "costs", "engines")  # header fields in which two parts of one run may differ
HEADER_BYTES = 16 << 20
AGAIN = "restore the file, or delete that line to measure its prompt again"


@dataclass
class Results:
    path: Path
    header: dict[str, Any]
    records: list[PromptRecord] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)

    @property
    def done(self) -> set[Key]:
        return {each.key for each in self.records} | {each.key for each in self.skips}

    @property
    def total(self) -> int | None:
        """Prompts of the whole run, once a temperature; None where the header does not tell."""
        if not {"prompts", "temperatures"} <= self.header.keys():
            return None
        return sum(map(len, self.header["prompts"].values())) * len(self.header["temperatures"])

    @property
    def state(self) -> str:
        """What is not as it should be at the end: prompts still to be measured, and those that could not be."""
        parts = []
        if self.total is not None and len(self.done) < self.total:
            parts.append(f"{len(self.done)} of {self.total} prompts")
        if self.skips:
            parts.append(f"{len(self.skips)} skipped")
        return ", ".join(parts)

    def append(self, each: PromptRecord | Skip) -> None:
        """Whole or not at all: what a full disk took of a line is cut off again."""
        size = self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(each.to_dict()) + "\n")
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, size)
            raise unwritable(self.path, error) from error
        self.keep(each)

    def keep(self, each: PromptRecord | Skip) -> None:
        if isinstance(each, Skip):
            self.skips.append(each)
        else:
            self.records.append(each)


def open_results(path: Path, header: dict[str, Any]) -> Results:
    """Begin a file, or go on with one of the very same run."""
    header = json.loads(json.dumps({"format": FORMAT, **header}))
    if is_new(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(header) + "\n", encoding="utf-8")
        except OSError as error:
            raise unwritable(path, error) from error
        return Results(path, header)
    found = read_results(path)
    said = differences(found.header, header)
    if said:
        raise ValueError(f"{path} is of another run ({said}); give another --output, or move the file away")
    end_last_line(path)
    return found


def differences(there: dict[str, Any], now: dict[str, Any]) -> str:
    """The fields of two headers that differ, those inside of fields by their own names."""
    left, right = flat(there), flat(now)
    names = sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    return "; ".join(f"{name}: {left.get(name)!r:.120} there, {right.get(name)!r:.120} now" for name in names)


def flat(header: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in header.items():
        if name in INCIDENTAL:
            continue
        if isinstance(value, dict):
            fields.update({f"{name}.{key}": part for key, part in value.items()})
        else:
            fields[name] = value
    return fields


def is_new(path: Path) -> bool:
    """Is there nothing yet, or only the beginning of a header, whose writing was cut short?"""
    if not path.exists() or not path.is_file():
        return not path.exists()
    with path.open("rb") as stream:
        first = stream.readline(HEADER_BYTES)
        return not first.endswith(b"\n") and len(first) < HEADER_BYTES and begins_header(first)


def begins_header(text: bytes) -> bool:
    """Nothing, or what every header of ours begins with, as far as it was written and not to its end."""
    start = json.dumps({"format": FORMAT}).encode()[:-1]
    short = text.startswith(start) or start.startswith(text)
    return short and not is_whole(text.decode(errors="replace"))


def unwritable(path: Path, error: OSError) -> ValueError:
    return ValueError(
        f"the results cannot be written to {path} ({error.strerror}); what was measured stays: free some space and run "
        "the same command again"
    )


def read_results(path: Path) -> Results:
    """Header and records; the beginning of a line whose writing was interrupted is left out."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the results of {path}: {error}") from error
    if not is_whole(lines[-1]):
        lines.pop()
    results = Results(path, header_in(lines, path))
    seen: dict[Key, int] = {}
    for number, line in enumerate(lines[1:], 2):
        if line.strip():
            each = each_of(line, results.header, path, number)
            if each.key in seen:
                repeated = f"it repeats the prompt of line {seen[each.key]}"
                raise damaged(path, number, repeated, "delete one of the two")
            seen[each.key] = number
            results.keep(each)
    return results


def header_in(lines: Sequence[str], path: Path) -> dict[str, Any]:
    try:
        header = json.loads(lines[0]) if lines else None
    except json.JSONDecodeError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(
            f"{path} is no results file of this version, whose first line is the header of a run; name one that "
            "`reanchor bench` wrote, and leave this one, or move it away"
        )
    if found := headers.trouble_of(header):
        raise damaged(path, 1, found, "restore the file, or move it away and measure again")
    return header


def each_of(line: str, header: dict[str, Any], path: Path, number: int) -> PromptRecord | Skip:
    try:
        given = json.loads(line)
    except json.JSONDecodeError as error:
        raise damaged(path, number, str(error)) from error
    if not isinstance(given, dict):
        raise damaged(path, number, "not an object")
    kept = "skipped" in given
    found = (
        schema.object_trouble(given, Skip, "", {}) if kept else schema.trouble_of(given, header["methods"])
    )
    if found:
        raise damaged(path, number, found)
    try:
        return Skip(**given) if kept else record.from_dict(given)
    except TypeError as error:
        raise ValueError(
            f"{path}, line {number} has a field that this version does not know ({error}); read it with the version "
            "that wrote it"
        ) from error


def damaged(path: Path, number: int, reason: str, remedy: str = AGAIN) -> ValueError:
    return ValueError(f"{path}, line {number} is damaged ({reason}); {remedy}")


def is_whole(line: str) -> bool:
    """Is a last line, without its end, a whole one all the same?"""
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def end_last_line(path: Path) -> None:
    """What stands after the last line end gets its own, or is cut: the beginning of an interrupted line."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if is_whole(data[whole:].decode(errors="replace")):
        with path.open("ab") as stream:
            stream.write(b"\n")
    elif whole < len(data):
        with path.open("r+b") as stream:
            stream.truncate(whole)
