"""Files from outside: only regular ones, of bounded size, and JSON of bounded depth; it knows no meaning of any."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

CONFIG_BYTES = 16 << 20  # of a JSON file with settings; the longest index of tensors has 4 MB
TEXT_BYTES = 512 << 20  # of a tokenizer's files


def check_regular(path: Path, limit: int | None = None) -> None:
    """ValueError for a pipe or a device, which may never end, and for what is larger than `limit` bytes.

    Raises FileNotFoundError where there is nothing.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a loop of links, a name too long, a NUL in it
        raise ValueError(f"{str(path)!r} cannot be read: {reason_of(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{str(path)!r} is no regular file; put a copy of the file there")
    if limit is not None and found.st_size > limit:
        raise ValueError(
            f"{str(path)!r} has {found.st_size} bytes, more than the {limit} that such a file may have: "
            "it is damaged or something else"
        )


def reason_of(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def read_json(path: Path, limit: int = CONFIG_BYTES) -> dict[str, Any]:
    """The object that a JSON file holds. Raises FileNotFoundError where there is no file, else ValueError."""
    check_regular(path, limit)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read: {reason_of(error)}") from error
    except RecursionError as error:
        raise ValueError(f"{str(path)!r} is nested too deep to be a config: copy it again") from error
    except ValueError as error:  # of UTF-8, of JSON, of numbers with thousands of digits
        raise ValueError(f"{str(path)!r} is not JSON ({error}): copy the checkpoint again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{str(path)!r} holds a {type(value).__name__}, not the keys of a config")
    return value


def files_of_index(path: Path, index: dict[str, Any]) -> list[str]:
    """The files that an index of tensors names, all beside it: a map that leads out of its folder is refused."""
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise ValueError(f"{str(path)!r} has no weight_map, which says where tensors are: copy it again")
    names = {name if isinstance(name, str) else f"/{name!r}" for name in placed.values()}
    for name in sorted(names):
        if not name or name != Path(name).name or name in (".", "..") or "\\" in name or "\0" in name:
            raise ValueError(
                f"the weight_map of {str(path)!r} names {name!r:.200}, which is no file of its folder: a checkpoint's "
                "tensors lie beside its index"
            )
    return sorted(names)


def named_path(name: str | Path, option: str) -> Path:
    """A path as a user wrote it, ~ for the home folder. ValueError where no file can be called so."""
    if str(name) == "":
        raise ValueError(f"{option} is empty; give a path, or leave it out")
    try:
        if "\0" in str(name):
            raise ValueError("it has a zero byte")
        path = Path(name).expanduser()
        path.exists()  # asks the system, which refuses what is too long
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{option} {str(name)!r:.200} cannot be a path: {reason_of(error)}") from error
    return path
