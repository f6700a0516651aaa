"""A results file: a header line with all that a figure depends on, then one line a finished prompt.

Lines are appended whole and never changed, so that an interrupted run goes on where it stopped. A file of
another run, or a damaged one, is refused and left as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reanchor.benchmark import record
from reanchor.benchmark.record import Key, Record

FORMAT = 1
INCIDENTAL = ("started", "costs")  # header fields in which two parts of one run may differ


@dataclass
class Results:
    path: Path
    header: dict[str, Any]
    records: list[Record] = field(default_factory=list)

    @property
    def done(self) -> set[Key]:
        return {each.key for each in self.records}

    def append(self, each: Record) -> None:
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(each.to_dict()) + "\n")
        self.records.append(each)


def open_results(path: Path, header: dict[str, Any]) -> Results:
    """Begin a file, or go on with one of the very same run."""
    header = json.loads(json.dumps({"format": FORMAT, **header}))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(header) + "\n", encoding="utf-8")
        return Results(path, header)
    found = read_results(path)
    differing = sorted(
        name
        for name in header.keys() | found.header.keys()
        if name not in INCIDENTAL and header.get(name) != found.header.get(name)
    )
    if differing:
        said = "; ".join(
            f"{name}: {found.header.get(name)!r:.120} there, {header.get(name)!r:.120} now"
            for name in differing
        )
        raise ValueError(f"{path} is of another run ({said}); give another --output, or move the file away")
    cut_torn_line(path)
    return found


def read_results(path: Path) -> Results:
    """Header and records; a last line without its end is one that was being written, and is left out."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the results of {path}: {error}") from error
    header = parsed(lines[0], path, 1) if len(lines) > 1 else {}
    if header.get("format") != FORMAT:
        raise ValueError(f"{path} is no results file of this version; its first line must be the header")
    records = [
        record_of(parsed(line, path, number), path, number) for number, line in enumerate(lines[1:-1], 2)
    ]
    return Results(path, header, records)


def parsed(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise damaged(path, number, str(error)) from error
    if not isinstance(value, dict):
        raise damaged(path, number, "not an object")
    return value


def record_of(given: dict[str, Any], path: Path, number: int) -> Record:
    try:
        return record.from_dict(given)
    except (KeyError, TypeError, IndexError) as error:
        raise damaged(path, number, f"{type(error).__name__}: {error}") from error


def damaged(path: Path, number: int, reason: str) -> ValueError:
    return ValueError(
        f"{path}, line {number} is damaged ({reason}); restore the file, or delete that line to measure its "
        "prompt again"
    )


def cut_torn_line(path: Path) -> None:
    """Remove what stands after the last line end: the beginning of a record whose writing was interrupted."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as stream:
            stream.truncate(whole)
