"""Who proposes under method auto: each source says, of any node, which tokens may follow and how likely.

Numbers only: a source is made of token ids and probabilities, and knows no model, no budget and no other source.
Depth is that of the parent: 0 asks for the children of the anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from reanchor.core import BASELINE, RECALL, TEXT, VERIFIER_PATH

TimesAt = Callable[
    [int], Any
]  # depth of a node -> what decides the draw among its children: a time a token, [V], or None
Chances = Mapping[int, float]  # token -> its probability as the source sees it; what is not named has none
RECALLED, QUOTED = 3, 4  # longest contexts, in tokens
LEAST = 1e-9  # of a time
RECENT = 8  # occurrences of a context in the text that are counted
MOST = 1 << 18  # contexts that recall keeps, some half a kilobyte each


@dataclass(frozen=True)
class Claim:
    """What one source says of the children of one node."""

    source: str  # the name its price is learnt under
    origin: int  # what `Tree.origins` says of a node it put in
    chances: Chances


class Source(Protocol):
    def claims(self, path: Sequence[int], depth: int) -> Iterable[Claim]:
        """Of the children of the last token of `path`; none without an opinion. path: the end of the text, the
        anchor, and the tokens of the trie below it, `depth` of them.
        """


class Rows:
    """A row of candidates for every depth, whatever stands before: the baseline block, or the target's own
    candidates at the retained states, which stand for the depths after them.
    """

    def __init__(self, source: str, origin: int, rows: Sequence[Chances]) -> None:
        self.rows = [Claim(source, origin, row) for row in rows]

    def claims(self, path: Sequence[int], depth: int) -> Iterable[Claim]:
        return self.rows[depth : depth + 1]


def baseline(rows: Sequence[Chances]) -> Rows:
    return Rows("baseline", BASELINE, rows)


def verifier_path(rows: Sequence[Chances]) -> Rows:
    return Rows("verifier", VERIFIER_PATH, rows)


class Shifted:
    """A shifted block speaks below its anchor, at the earliest place where the path holds it (token matching); one that
    raced at its own place only, as other places have other times.
    """

    def __init__(self, offset: int, anchor: int, rows: Sequence[Chances], raced: bool = False) -> None:
        self.anchor, self.place = anchor, offset if raced else None
        self.rows = [Claim("shifted", offset, row) for row in rows]

    def claims(self, path: Sequence[int], depth: int) -> Iterable[Claim]:
        for row in range(depth - 1, -1, -1):  # the place `row` tokens before the parent; earliest first
            if path[-1 - row] == self.anchor and self.place in (None, depth - row):
                return self.rows[row : row + 1]
        return ()


class Recall:
    """The target's own candidates after the last tokens of every node it ever verified, accepted or not.

    One, two and three tokens are contexts of their own, each a source with a price of its own.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], Claim] = {}

    def claims(self, path: Sequence[int], depth: int) -> Iterable[Claim]:
        found = (self.known.get(context) for context in contexts(path, RECALLED))
        return [claim for claim in found if claim is not None]

    def learn(self, path: Sequence[int], chances: Chances) -> None:
        """The target's candidates after `path`; they replace what was known."""
        for context in contexts(path, RECALLED):
            self.known.pop(context, None)  # what is learnt again is young again
            self.known[context] = Claim(f"recall {len(context)}", RECALL, chances)
        if len(self.known) > MOST:  # the older half at once, as a dictionary is slow to lose its first
            self.known = dict(islice(self.known.items(), MOST // 2, None))


class Text:
    """What followed the same tokens before, in the prompt and the text so far: the longest context that occurred."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self.followers: dict[tuple[int, ...], list[int]] = {}

    def claims(self, path: Sequence[int], depth: int) -> Iterable[Claim]:
        for context in contexts(path, QUOTED):
            if context in self.followers:
                seen = self.followers[context][-RECENT:]
                chances = {token: seen.count(token) / len(seen) for token in seen}
                return [Claim(f"text {len(context)}", TEXT, chances)]
        return ()

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            for context in contexts(self.text, QUOTED):
                self.followers.setdefault(context, []).append(token)
            self.text.append(token)


class Raced:
    """A source whose tokens meet the times that decide the target's draw: who would win, were the chances right.

    A token wins with its chance over its time against the others', what is not named having a time of one.
    """

    def __init__(self, source: Source, times: TimesAt) -> None:
        self.source, self.times = source, times

    def claims(self, path: Sequence[int], depth: int) -> Iterable[Claim]:
        found = list(self.source.claims(path, depth))
        times = self.times(depth) if found else None  # which nobody draws in vain
        if times is None:
            return found
        return [Claim(each.source, each.origin, self.raced(each.chances, times)) for each in found]

    def raced(self, chances: Chances, times: Sequence[float]) -> Chances:
        try:
            arrivals = {token: chance / max(float(times[token]), LEAST) for token, chance in chances.items()}
        except IndexError:  # a prompt may hold tokens that the target never says
            return self.raced({token: each for token, each in chances.items() if token < len(times)}, times)
        total = sum(arrivals.values()) + max(0.0, 1.0 - sum(chances.values()))
        return {token: arrival / total for token, arrival in arrivals.items()}


def contexts(path: Sequence[int], longest: int) -> list[tuple[int, ...]]:
    """The ends of a path, longest first."""
    return [tuple(path[-length:]) for length in range(min(longest, len(path)), 0, -1)]
