"""Record of one prompt: every method's outcome in every turn. A line of a results file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from reanchor.benchmark import outcome
from reanchor.benchmark.gate import Difference
from reanchor.benchmark.outcome import Outcome

Key = tuple[str, float, str]  # dataset, temperature, prompt


@dataclass(frozen=True)
class PromptRecord:
    dataset: str
    id: str
    temperature: float
    order: list[str]  # who ran when
    prompt_tokens: list[int]  # [turns]
    turns: list[dict[str, Outcome]]  # [turns], by method
    differences: list[Difference] = field(default_factory=list)
    right: dict[str, bool] = field(default_factory=dict)  # where a reference answer could be compared
    cut: list[str] = field(
        default_factory=list
    )  # where it could not: the token limit came before a final answer
    resumed: bool = False  # the first after an interruption: what method auto had learnt before was gone
    costs: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # of auto, in the first to use them since a start

    @property
    def key(self) -> Key:
        return self.dataset, self.temperature, self.id

    @property
    def methods(self) -> list[str]:
        return list(self.turns[0])

    def outcomes(self, method: str) -> list[Outcome]:
        return [turn[method] for turn in self.turns]

    def to_dict(self) -> dict[str, Any]:
        turns = [{name: outcome.to_dict(each) for name, each in turn.items()} for turn in self.turns]
        differences = [asdict(each) for each in self.differences]
        return {**vars(self), "turns": turns, "differences": differences}


def from_dict(given: dict[str, Any]) -> PromptRecord:
    turns = [{name: outcome.from_dict(each) for name, each in turn.items()} for turn in given["turns"]]
    differences = [Difference(**each) for each in given["differences"]]
    return PromptRecord(**{**given, "turns": turns, "differences": differences})
