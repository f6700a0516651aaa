"""Outcome of one method on one prompt, and its form in a results file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from reanchor.stats import RoundStats, Stats


@dataclass(frozen=True)
class Outcome:
    """One decode. A loop that is not ours has no rounds, only their number."""

    tokens: list[int]  # returned, the end-of-sequence token included
    first_seconds: float  # to the first token: the prefill
    decode_seconds: float  # everything after it
    passes: int  # target passes after the prefill
    rounds: list[RoundStats]
    memory: int | None = None  # peak bytes while it ran, where the machine tells
    counts: dict[str, int] = field(default_factory=dict)  # what a counter made of its steps
    prefilled: int = 1  # tokens that the first pass gave; a loop may verify drafts in it

    @property
    def decoded(self) -> int:
        """Tokens that decoding gave."""
        return len(self.tokens) - self.prefilled

    def stats(self, method: str) -> Stats:
        return Stats(
            method, tokens=len(self.tokens), time_to_first_token=self.first_seconds, rounds=self.rounds
        )


def to_dict(outcome: Outcome) -> dict[str, Any]:
    """JSON-ready; the rounds by column, which is a fifth of their size by row."""
    columns: dict[str, Any] = {}
    if outcome.rounds:
        rows = [asdict(each) for each in outcome.rounds]
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "stages"}
        stages = sorted({stage for row in rows for stage in row["stages"]})
        columns["stages"] = {stage: [row["stages"].get(stage, 0.0) for row in rows] for stage in stages}
    return {**{each.name: getattr(outcome, each.name) for each in fields(outcome)}, "rounds": columns}


def from_dict(given: dict[str, Any]) -> Outcome:
    columns = dict(given["rounds"])
    rounds = []
    if columns:
        stages = columns.pop("stages")
        names = [each.name for each in fields(RoundStats) if each.name in columns]  # an older file has fewer
        for index in range(len(columns["tokens"])):
            split = {stage: seconds[index] for stage, seconds in stages.items()}
            rounds.append(RoundStats(**{name: columns[name][index] for name in names}, stages=split))
    return Outcome(**{**given, "rounds": rounds})
