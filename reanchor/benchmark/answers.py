"""Is an answer right? Final numbers and expressions are compared as text, normalised; code is not run."""

from __future__ import annotations

import re

CHECKED = ("gsm8k", "math500", "aime25", "demo")
NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")


def is_right(dataset: str, text: str, reference: str | None) -> bool | None:
    """None where there is nothing to compare with, or only running it would tell."""
    if reference is None or dataset not in CHECKED:
        return None
    wanted, given = normal(reference), final(text)
    return given is not None and (given == wanted or same_number(given, wanted))


def final(text: str) -> str | None:
    """What the last \\boxed{} holds; the last number where there is none."""
    start = text.rfind("\\boxed{")
    if start >= 0:
        inside = braced(text, start + len("\\boxed"))
        if inside is not None:
            return normal(inside)
    numbers = NUMBER.findall(text)
    return normal(numbers[-1]) if numbers else None


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
