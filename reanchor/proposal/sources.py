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

NoiseAt = Callable[
    [int], Any
]  # depth of a node -> what decides the draw among its children: a time a token, [V], or None
Probabilities = Mapping[
    int, float
]  # token -> its probability as the source sees it; what is not named has none
RECYCLED_CONTEXT, LOOKUP_CONTEXT = 3, 4  # longest contexts, in tokens
LEAST = 1e-9  # of a time
RECENT = 8  # occurrences of a context in the text that are counted
MOST = 1 << 18  # contexts that recall keeps, some half a kilobyte each


@dataclass(frozen=True)
class CandidateSet:
    """What one source says of the children of one node."""

    source: str  # the name its price is learnt under
    origin: int  # what `Tree.origins` says of a node it put in
    chances: Probabilities


class Source(Protocol):
    def claims(self, path: Sequence[int], depth: int) -> Iterable[CandidateSet]:
        """Of the children of the last token of `path`; none without an opinion. path: the end of the text, the
        anchor, and the tokens of the tree below it, `depth` of them.
        """


class PositionalCandidates:
    """A row of candidates for every depth, whatever stands before: the baseline block, or the target's own
    candidates at the retained states, which stand for the depths after them.
    """

    def __init__(self, source: str, origin: int, rows: Sequence[Probabilities]) -> None:
        self.rows = [CandidateSet(source, origin, row) for row in rows]

    def claims(self, path: Sequence[int], depth: int) -> Iterable[CandidateSet]:
        return self.rows[depth : depth + 1]


def baseline_source(rows: Sequence[Probabilities]) -> PositionalCandidates:
    return PositionalCandidates("baseline", BASELINE, rows)


def verifier_source(rows: Sequence[Probabilities]) -> PositionalCandidates:
    return PositionalCandidates("verifier", VERIFIER_PATH, rows)


class ShiftedCandidates:
    """A shifted block speaks below its anchor, at the earliest place where the path holds it (token matching); one that
    raced at its own place only, as other places have other times.
    """

    def __init__(
        self, offset: int, anchor: int, rows: Sequence[Probabilities], coupled: bool = False
    ) -> None:
        self.anchor, self.place = anchor, offset if coupled else None
        self.rows = [CandidateSet("shifted", offset, row) for row in rows]

    def claims(self, path: Sequence[int], depth: int) -> Iterable[CandidateSet]:
        for row in range(depth - 1, -1, -1):  # the place `row` tokens before the parent; earliest first
            if path[-1 - row] == self.anchor and self.place in (None, depth - row):
                return self.rows[row : row + 1]
        return ()


class RecycledTokens:
    """The target's own candidates after the last tokens of every node it ever verified, accepted or not.

    One, two and three tokens are contexts of their own, each a source with a price of its own.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], CandidateSet] = {}

    def claims(self, path: Sequence[int], depth: int) -> Iterable[CandidateSet]:
        found = (self.known.get(context) for context in suffixes(path, RECYCLED_CONTEXT))
        return [claim for claim in found if claim is not None]

    def learn(self, path: Sequence[int], chances: Probabilities) -> None:
        """The target's candidates after `path`; they replace what was known."""
        for context in suffixes(path, RECYCLED_CONTEXT):
            self.known.pop(context, None)  # what is learnt again is young again
            self.known[context] = CandidateSet(f"recall {len(context)}", RECALL, chances)
        if len(self.known) > MOST:  # the older half at once, as a dictionary is slow to lose its first
            self.known = dict(islice(self.known.items(), MOST // 2, None))


class PromptLookup:
    """What followed the same tokens before, in the prompt and the text so far: the longest context that occurred."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self.followers: dict[tuple[int, ...], list[int]] = {}

    def claims(self, path: Sequence[int], depth: int) -> Iterable[CandidateSet]:
        for context in suffixes(path, LOOKUP_CONTEXT):
            if context in self.followers:
                seen = self.followers[context][-RECENT:]
                chances = {token: seen.count(token) / len(seen) for token in seen}
                return [CandidateSet(f"text {len(context)}", TEXT, chances)]
        return ()

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            for context in suffixes(self.text, LOOKUP_CONTEXT):
                self.followers.setdefault(context, []).append(token)
            self.text.append(token)


class CoupledSource:
    """A source whose tokens meet the times that decide the target's draw: who would win, were the chances right.

    A token wins with its chance over its time against the others', what is not named having a time of one.
    """

    def __init__(self, source: Source, times: NoiseAt) -> None:
        self.source, self.times = source, times

    def claims(self, path: Sequence[int], depth: int) -> Iterable[CandidateSet]:
        found = list(self.source.claims(path, depth))
        times = self.times(depth) if found else None  # which nobody draws in vain
        if times is None:
            return found
        return [CandidateSet(each.source, each.origin, self.coupled(each.chances, times)) for each in found]

    def coupled(self, chances: Probabilities, times: Sequence[float]) -> Probabilities:
        try:
            arrivals = {token: chance / max(float(times[token]), LEAST) for token, chance in chances.items()}
        except IndexError:  # a prompt may hold tokens that the target never says
            return self.coupled({token: each for token, each in chances.items() if token < len(times)}, times)
        total = sum(arrivals.values()) + max(0.0, 1.0 - sum(chances.values()))
        return {token: arrival / total for token, arrival in arrivals.items()}


def suffixes(path: Sequence[int], longest: int) -> list[tuple[int, ...]]:
    """The ends of a path, longest first."""
    return [tuple(path[-length:]) for length in range(min(longest, len(path)), 0, -1)]
