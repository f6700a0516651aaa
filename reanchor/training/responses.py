"""Recorded responses of the target: token ids of prompts and what the target answered; no model, no text."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Response:
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    source: str = ""

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.response_ids

    def cut(self, length: int) -> Response:
        """At most `length` tokens, prompt included."""
        room = max(0, length - len(self.prompt_ids))
        return Response(self.prompt_ids, self.response_ids[:room], self.source)


def read_responses(path: Path, vocabulary: int) -> tuple[list[Response], int]:
    """All whole lines, and how many unfinished ones were left out: 1 when the writer was stopped in a line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the responses {str(path)!r}: {error}") from error
    lines = text.split("\n")
    found: list[Response] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):  # no line end: its writer was stopped
                return checked(found, path), 1
            raise ValueError(f"line {number} of {str(path)!r} is not JSON ({error}): remove it") from None
        found.append(response_of(row, number, path, vocabulary))
    return checked(found, path), 0


def response_of(row: Any, number: int, path: Path, vocabulary: int) -> Response:
    where = f"line {number} of {str(path)!r}"
    try:
        response = Response(tuple(row["prompt_ids"]), tuple(row["response_ids"]), str(row.get("source", "")))
    except (KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{where} has no prompt_ids and response_ids; make such files with `reanchor train responses`"
        ) from None
    if not response.prompt_ids or not all(isinstance(each, int) for each in response.ids):
        raise ValueError(f"{where} must hold a non-empty prompt and whole numbers")
    stranger = next((token for token in response.ids if not 0 <= token < vocabulary), None)
    if stranger is not None:
        raise ValueError(
            f"{where} has token {stranger}, the target's vocabulary is {vocabulary}: the responses are "
            "another tokenizer's; regenerate them with this target"
        )
    return response


def checked(found: list[Response], path: Path) -> list[Response]:
    if not found:
        raise ValueError(f"{str(path)!r} holds no response")
    return found


def split(
    responses: Sequence[Response], held_out: int, proposals: int, max_length: int, seed: int
) -> tuple[list[Response], list[Response], int]:
    """Training and held-out responses, and how many were dropped because no block fits into them."""
    cut = [response.cut(max_length) for response in responses]
    usable = [response for response in cut if len(response.response_ids) > proposals]
    if len(usable) <= held_out:
        raise ValueError(
            f"{len(usable)} responses leave room for a block of {proposals} proposals; with {held_out} held out "
            "none is left to train on"
        )
    order = random.Random(seed).sample(range(len(usable)), len(usable))
    shuffled = [usable[place] for place in order]
    return shuffled[held_out:], shuffled[:held_out], len(cut) - len(usable)
