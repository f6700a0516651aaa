"""Correctness of answers: final numbers and expressions are compared as text, normalised; code is not run."""

from __future__ import annotations

import re

from reanchor.datasets import SOURCES

CHECKED = ("gsm8k", "math500", "aime25")
CODE = ("humaneval", "mbpp", "livecodebench", "speculators-humaneval")
NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")


def is_comparable(dataset: str, reference: str | None) -> bool:
    """Can an answer be compared with it? Outside of the sets whose references are results, a number can."""
    if reference is None or dataset in CODE:
        return False
    return dataset in CHECKED or (dataset not in SOURCES and bool(NUMBER.fullmatch(normal(reference))))


def unjudged(dataset: str) -> str:
    """Why no answer of a set was compared."""
    return "not executed" if dataset in CODE else "no reference"


def is_right(text: str, reference: str) -> bool:
    wanted, given = normal(reference), final(text)
    return given is not None and (given == wanted or same_number(given, wanted))


def final(text: str) -> str | None:
    """What the last \\boxed{} holds; the last number where there is none."""
    inside = boxed(text)
    if inside is not None:
        return inside
    numbers = NUMBER.findall(text)
    return normal(numbers[-1]) if numbers else None


def boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    inside = None if start < 0 else braced(text, start + len("\\boxed"))
    return None if inside is None else normal(inside)


def braced(text: str, start: int) -> str | None:
    """The inside of the braces that open at `start`; None when they never close."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place]
    return None


def normal(text: str) -> str:
    text = re.sub(r"\\(left|right|,|!|;|\$|%)|\\text\{[^}]*\}|[\s$]", "", text).replace("dfrac", "frac")
    text = text.replace("^\\circ", "").replace("^{\\circ}", "").rstrip(".")
    return re.sub(r"(?<=\d),(?=\d{3}(\D|$))", "", text)


def same_number(left: str, right: str) -> bool:
    try:
        return float(left) == float(right)
    except ValueError:
        return False
