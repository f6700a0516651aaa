"""Benchmark harness: every prompt by every method in one process, in an order that rotates, judged before it counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reanchor.benchmark.answers import boxed, is_comparable, is_right
from reanchor.benchmark.conversation import Conversation
from reanchor.benchmark.gate import Difference, Gate
from reanchor.benchmark.outcome import Outcome
from reanchor.benchmark.record import Key, PromptRecord
from reanchor.benchmark.runners import EngineRunner, MethodRunner
from reanchor.benchmark.skip import Skip
from reanchor.config import SamplingConfig
from reanchor.datasets import Prompt, PromptSet
from reanchor.target import end_ids

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Bench:
    """Who competes on what terms. The first method is the reference: plain decoding."""

    methods: Sequence[MethodRunner]
    conversation: Conversation
    gate: Gate
    sampling: SamplingConfig
    context_length: int | None = None

    def run(
        self, sets: Sequence[PromptSet], temperatures: Sequence[float], done: Collection[Key] = ()
    ) -> Iterator[PromptRecord | Skip]:
        """A record a prompt, leaving out those done before; a skip for one too long for the target's context."""
        warm: set[float] = set()
        told: set[bool] = set()
        for each in sets:
            for temperature in temperatures:
                for index, prompt in enumerate(each.prompts):
                    if (each.name, temperature, prompt.id) in done:
                        continue
                    if temperature not in warm and self.lack(self.opening(prompt)) is None:
                        self.warm_up(prompt, temperature)
                        warm.add(temperature)
                    found = self.measure(each.name, prompt, temperature, index)
                    if isinstance(found, PromptRecord):
                        found = replace(found, **self.began(temperature > 0, bool(done), told))
                    yield found

    def began(self, sample: bool, resumed: bool, told: set[bool]) -> dict[str, Any]:
        """What the first record since a start says of it: method auto begins anew, with what it measures then. told: of
        greedy decoding and of sampling, whose costs stand in a record already.
        """
        first = not told
        if sample in told:
            return {}
        told.add(sample)
        engines = [each for each in self.methods if isinstance(each, EngineRunner)]
        costs = {each.name: found for each in engines if (found := each.costs(sample)) is not None}
        return {"resumed": resumed and first, "costs": costs}

    def unfit(self, sets: Sequence[PromptSet]) -> list[Prompt]:
        """Prompts whose first turn alone has no room. ValueError when no other is left."""
        prompts = [prompt for each in sets for prompt in each.prompts]
        found = [(prompt, lack) for prompt in prompts if (lack := self.lack(self.opening(prompt)))]
        if len(found) == len(prompts):
            raise ValueError(f"no prompt fits: {found[0][0].id!r} {found[0][1]}; give shorter ones")
        return [prompt for prompt, _ in found]

    def opening(self, prompt: Prompt) -> list[int]:
        return self.conversation.encode(prompt.turns[:1], [])

    def lack(self, ids: list[int]) -> str | None:
        """Why there is no room for an answer; None when there is."""
        if self.context_length is None or self.context_length - len(ids) >= 2:
            return None
        return f"has {len(ids)} tokens and the target's context {self.context_length}"

    def warm_up(self, prompt: Prompt, temperature: float) -> None:
        """First passes touch cold weights, compile kernels and grow caches: no method's fault."""
        ids = self.opening(prompt)
        brief = replace(self.sampling, temperature=temperature, max_new_tokens=WARM_UP_TOKENS, seed=0)
        for method in self.methods:
            method.decode(ids, self.limited(brief, ids))

    def measure(self, dataset: str, prompt: Prompt, temperature: float, index: int) -> PromptRecord | Skip:
        """All turns of one prompt. Every method is given the reference's own earlier answers."""
        order = self.order(index)
        answers: list[str] = []
        turns: list[dict[str, Outcome]] = []
        lengths: list[int] = []
        differences: list[Difference] = []
        for turn in range(len(prompt.turns)):
            ids = self.conversation.encode(prompt.turns[: turn + 1], answers)
            if lack := self.lack(ids):
                return Skip(dataset, prompt.id, temperature, f"turn {turn + 1} {lack}")
            seed = None if self.sampling.seed is None else self.sampling.seed + index + 1000 * turn
            sampling = self.limited(replace(self.sampling, temperature=temperature, seed=seed), ids)
            ran = {method.name: method.decode(ids, sampling) for method in order}
            outcomes = {method.name: ran[method.name] for method in self.methods}
            if temperature == 0:
                differences += self.judge(turn, ids, outcomes)
            answers.append(self.conversation.text(outcomes[self.methods[0].name].tokens))
            turns.append(outcomes)
            lengths.append(len(ids))
        names = [method.name for method in order]
        right, cut = self.compared(prompt, turns[0]) if is_comparable(dataset, prompt.reference) else ({}, [])
        return PromptRecord(dataset, prompt.id, temperature, names, lengths, turns, differences, right, cut)

    def order(self, index: int) -> list[MethodRunner]:
        start = index % len(self.methods)
        return [*self.methods[start:], *self.methods[:start]]

    def limited(self, sampling: SamplingConfig, ids: list[int]) -> SamplingConfig:
        """The same length for everyone, within the target's context."""
        if self.context_length is None:
            return sampling
        room = self.context_length - len(ids)
        return replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))

    def judge(self, turn: int, ids: list[int], outcomes: dict[str, Outcome]) -> list[Difference]:
        reference = outcomes[self.methods[0].name].tokens
        found = [self.gate.judge(name, turn, ids, reference, each.tokens) for name, each in outcomes.items()]
        return [each for each in found if each is not None]

    def compared(self, prompt: Prompt, turn: dict[str, Outcome]) -> tuple[dict[str, bool], list[str]]:
        """Whose first answer is right, and whose was cut before it said what could be compared."""
        limit = self.limited(self.sampling, self.opening(prompt)).max_new_tokens
        ends = end_ids(self.gate.target.model)
        right: dict[str, bool] = {}
        cut: list[str] = []
        for name, each in turn.items():
            text = self.conversation.text(each.tokens)
            if len(each.tokens) >= limit and each.tokens[-1] not in ends and boxed(text) is None:
                cut.append(name)
            else:
                right[name] = is_right(text, prompt.reference or "")
        return right, cut
