"""The run: every prompt by every contestant in one process, in an order that rotates, judged before it counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from reanchor.benchmark.answers import is_right
from reanchor.benchmark.contestant import Contestant
from reanchor.benchmark.conversation import Conversation
from reanchor.benchmark.gate import Difference, Gate
from reanchor.benchmark.outcome import Outcome
from reanchor.benchmark.record import Key, Record
from reanchor.config import SamplingConfig
from reanchor.datasets import Prompt, PromptSet

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Bench:
    """Who competes on what terms. The first contestant is the reference: plain decoding."""

    contestants: Sequence[Contestant]
    conversation: Conversation
    gate: Gate
    sampling: SamplingConfig
    context_length: int | None = None

    def run(
        self, sets: Sequence[PromptSet], temperatures: Sequence[float], done: Collection[Key] = ()
    ) -> Iterator[Record]:
        """A record a prompt, leaving out those done before. Raises ValueError for a prompt that doesn't fit."""
        warm = False
        for each in sets:
            for temperature in temperatures:
                for index, prompt in enumerate(each.prompts):
                    if (each.name, temperature, prompt.id) in done:
                        continue
                    if not warm:
                        self.warm_up(prompt, temperature)
                        warm = True
                    yield self.measure(each.name, prompt, temperature, index)

    def warm_up(self, prompt: Prompt, temperature: float) -> None:
        """First passes touch cold weights, compile kernels and grow caches: no contestant's fault."""
        ids = self.conversation.encode(prompt.turns[:1], [])
        brief = replace(self.sampling, temperature=temperature, max_new_tokens=WARM_UP_TOKENS, seed=0)
        for contestant in self.contestants:
            contestant.decode(ids, self.limited(brief, ids, prompt))

    def measure(self, dataset: str, prompt: Prompt, temperature: float, index: int) -> Record:
        """All turns of one prompt. Every contestant is given the reference's own earlier answers."""
        order = self.order(index)
        answers: list[str] = []
        turns: list[dict[str, Outcome]] = []
        lengths: list[int] = []
        differences: list[Difference] = []
        for turn in range(len(prompt.turns)):
            ids = self.conversation.encode(prompt.turns[: turn + 1], answers)
            seed = None if self.sampling.seed is None else self.sampling.seed + index + 1000 * turn
            sampling = replace(self.sampling, temperature=temperature, seed=seed)
            sampling = self.limited(sampling, ids, prompt)
            ran = {contestant.name: contestant.decode(ids, sampling) for contestant in order}
            outcomes = {contestant.name: ran[contestant.name] for contestant in self.contestants}
            if temperature == 0:
                differences += self.judge(turn, ids, outcomes)
            answers.append(self.conversation.text(outcomes[self.contestants[0].name].tokens))
            turns.append(outcomes)
            lengths.append(len(ids))
        names = [contestant.name for contestant in order]
        right = self.right(dataset, prompt, turns[0])
        return Record(dataset, prompt.id, temperature, names, lengths, turns, differences, right)

    def order(self, index: int) -> list[Contestant]:
        start = index % len(self.contestants)
        return [*self.contestants[start:], *self.contestants[:start]]

    def limited(self, sampling: SamplingConfig, ids: list[int], prompt: Prompt) -> SamplingConfig:
        """The same length for everyone, within the target's context."""
        if self.context_length is None:
            return sampling
        room = self.context_length - len(ids)
        if room < 2:
            raise ValueError(
                f"the prompt {prompt.id!r} has {len(ids)} tokens and the target's context {self.context_length}; "
                "leave it out, or shorten it"
            )
        return replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))

    def judge(self, turn: int, ids: list[int], outcomes: dict[str, Outcome]) -> list[Difference]:
        reference = outcomes[self.contestants[0].name].tokens
        found = [self.gate.judge(name, turn, ids, reference, each.tokens) for name, each in outcomes.items()]
        return [each for each in found if each is not None]

    def right(self, dataset: str, prompt: Prompt, turn: dict[str, Outcome]) -> dict[str, bool]:
        judged = {
            name: is_right(dataset, self.conversation.text(each.tokens), prompt.reference)
            for name, each in turn.items()
        }
        return {name: verdict for name, verdict in judged.items() if verdict is not None}
