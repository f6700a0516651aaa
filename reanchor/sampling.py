"""The target's own choice of every token, and the end of decoding, judged after every token.

Greedy is the argmax of the processed scores, sampling one draw from their softmax, as in HF generate.
Processors that look at nothing but the scores run for all nodes of a tree at once. Any other processor sees
exactly the prefixes that are committed, each once and in order, so that even one with a memory behaves as it
does in HF generate.

A draw is a race: token i arrives after an exponential time over its probability, and the first is drawn. This is what
`torch.multinomial` does. The times of a position (`times.py`) are drawn once, whatever was proposed for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from reanchor.argmax import argmax
from reanchor.config import SamplingConfig
from reanchor.noise import SamplingNoise

# processors whose result for a row depends on that row's scores alone
_PREFIX_FREE = {
    getattr(logits_process, name)
    for name in (
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TopHLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "LogitNormalization",
        "InfNanRemoveLogitsProcessor",
    )
    if hasattr(logits_process, name)
}
LEAST = 1e-30  # of a probability whose logarithm is taken
_RESERVED = 4096  # new tokens that room is made for at once; a limit may be far beyond what is generated


@dataclass
class ScoreRecord:
    """Scores before and after the processors, one [1, V] float32 tensor a committed token."""

    logits: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)


class TokenSelector:
    """Chooses tokens for one decode and remembers what it committed.

    prompt: [P]. `criteria` are HF stopping criteria, called with the committed prefix [1, t]; end-of-sequence
    ids and the length limit are plain integers because they are asked after every token.
    """

    def __init__(
        self,
        prompt: Tensor,
        max_new_tokens: int,
        *,
        sample: bool = False,
        processors: Sequence[object] = (),
        criteria: Iterable[object] = (),
        end_ids: Iterable[int] = (),
        generator: torch.Generator | None = None,
        record: ScoreRecord | None = None,
    ) -> None:
        self.prefix = prompt.new_empty(1, len(prompt) + min(max_new_tokens, _RESERVED), dtype=torch.long)
        self.prefix[0, : len(prompt)] = prompt
        self.length, self.limit = len(prompt), len(prompt) + max_new_tokens
        self.sample, self.generator, self.record = sample, generator, record
        self.processors = LogitsProcessorList(processors)
        self.criteria, self.end_ids = list(criteria), frozenset(end_ids)
        self.prefix_free = record is None and all(type(each) in _PREFIX_FREE for each in self.processors)
        self.noise = SamplingNoise(generator, prompt.device)

    @property
    def room(self) -> int:
        """Tokens still allowed."""
        return self.limit - self.length

    @property
    def committed(self) -> Tensor:
        """Prompt and committed tokens: [1, t]"""
        return self.prefix[:, : self.length]

    def select_all(self, logits: Tensor, depths: Sequence[int]) -> list[int] | None:
        """The target's token at every node, or None when each is better asked for alone. logits: [N, V]

        A processor that reads the text makes it so, and sampling on a CPU, where looking through the vocabulary takes
        longer than a node does. A GPU would wait for its host at each of them.
        """
        if not self.prefix_free or (self.sample and logits.device.type == "cpu"):
            return None
        scores = self._process(logits, self.committed)
        return race_winners(self.arrivals(scores, depths)) if self.sample else argmax(scores).tolist()

    def peek(self, logits: Tensor, places: Sequence[int]) -> list[int]:
        """What would be sampled at nodes whose tokens stand `places` after the last one committed. logits: [N, V]"""
        scores = self._process(logits, self.committed)
        return self.arrivals(scores, places).argmax(-1).tolist()

    @property
    def noise_is_predictable(self) -> bool:
        """May drafts know the times? A processor that is not prefix-free may draw numbers of its own, which must come
        between those of the tokens.
        """
        return self.sample and self.prefix_free

    @property
    def temperature(self) -> float:
        """What the processors divide scores by when sampling; 1 for greedy decoding."""
        if not self.sample:
            return 1.0
        found = [each for each in self.processors if isinstance(each, logits_process.TemperatureLogitsWarper)]
        return float(math.prod(each.temperature for each in found))

    def select_next(self, logits: Tensor) -> int:
        """The target's token after the committed prefix. logits: [V]"""
        scores = self._process(logits[None], self.committed)
        if self.record is not None:
            self.record.logits.append(logits[None].float())
            self.record.scores.append(scores)
        if not self.sample:
            return int(argmax(scores))
        return race_winners(self.arrivals(scores, [0]))[0]

    def couple(self, scores: Tensor, places: Sequence[int], ids: Tensor | None = None) -> Tensor:
        """Scores of a draft bent so that the largest is the token that would be drawn, were they the target's.

        scores: [N, M]; places: [N], as in `peek`; ids: [N, M] or [M], the tokens that the columns are; None: all
        of them in order -> [N, M] logarithms of probability over time
        """
        times = self.noise_rows(places)
        if ids is not None:
            times = times.gather(-1, ids.expand(len(times), -1))
        return self.distribution(scores).clamp(min=LEAST).log() - times.log()

    def arrivals(self, scores: Tensor, places: Sequence[int]) -> Tensor:
        """Probability over time, the largest of which is first. scores: [N, V] -> [N, V]"""
        self.noise.size = scores.shape[-1]
        return scores.softmax(-1) / self.noise_rows(places)

    def noise_rows(self, places: Sequence[int]) -> Tensor:
        """[N, V]"""
        rows = {place: self.noise.row(place) for place in dict.fromkeys(sorted(places))}
        return torch.stack([rows[place] for place in places])

    def distribution(self, scores: Tensor) -> Tensor:
        """What sampling draws from, for rows that nothing but their scores decides. scores: [N, V] -> [N, V]"""
        if not self.prefix_free:
            raise ValueError(
                "rejection sampling compares two distributions of one token, and a processor here reads the text "
                "or keeps scores: use sampling_mode 'exact-match'"
            )
        return self._process(scores, self.committed).softmax(-1)

    def draw(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """A token of each row [N, 1], and the distributions they came from [N, V]."""
        probabilities = self.distribution(scores)
        return self.draw_from(probabilities), probabilities

    def weigh(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """As `draw`, but the likeliest token of each row."""
        probabilities = self.distribution(scores)
        return probabilities.argmax(-1, keepdim=True), probabilities

    def draw_from(self, probabilities: Tensor) -> Tensor:
        return torch.multinomial(probabilities, 1, generator=self.generator)

    def chance(self) -> float:
        """Uniform over [0, 1)."""
        return float(torch.rand((), generator=self.generator, device=self.prefix.device))

    def seed(self) -> int:
        """For draws of someone else's, which are to repeat when these do and differ when these do."""
        place = self.prefix.device
        return int(torch.randint(1 << 62, (), generator=self.generator, device=place))

    def commit(self, token: int) -> bool:
        """Append a token to the prefix; True when it is the last."""
        self.noise.advance()
        if self.length == self.prefix.shape[1]:
            self.prefix = torch.cat([self.prefix, torch.empty_like(self.prefix)], dim=1)
        self.prefix[0, self.length] = token
        self.length += 1
        scores = tuple(self.record.scores) if self.record is not None else None
        # every criterion is asked every time: one may keep count
        stops = [bool(criterion(self.committed, scores).all()) for criterion in self.criteria]  # type: ignore[operator]
        stopped = self.length >= self.limit or token in self.end_ids or any(stops)
        if stopped:
            self.noise.restore_unused()
        return stopped

    def _process(self, logits: Tensor, prefix: Tensor) -> Tensor:
        if not self.processors and not self.sample and self.record is None:
            return logits  # the argmax of the raw scores, without a float copy of them
        return self.processors(cast(torch.LongTensor, prefix), logits.to(torch.float32, copy=True))


def race_winners(arrivals: Tensor) -> list[int]:
    """Who wins each race. arrivals: probabilities over times [N, V]"""
    best, tokens = arrivals.max(-1)
    if not bool((best > 0).all()):
        raise ValueError(
            "the target's scores of the next token are no numbers: a token cannot be drawn from them"
        )
    return tokens.tolist()


def token_selector(config: SamplingConfig, prompt: Tensor, end_ids: Iterable[int] = ()) -> TokenSelector:
    """The selector that a SamplingConfig describes; prompt: [P] on the target's device."""
    warpers: list[object] = []
    if config.temperature > 0:
        if config.temperature != 1:
            warpers.append(logits_process.TemperatureLogitsWarper(config.temperature))
        if config.top_k:
            warpers.append(logits_process.TopKLogitsWarper(config.top_k))
        if config.top_p < 1:
            warpers.append(logits_process.TopPLogitsWarper(config.top_p))
    generator = None
    if config.seed is not None:
        generator = torch.Generator(prompt.device).manual_seed(config.seed)
    sample = config.temperature > 0
    return TokenSelector(
        prompt, config.max_new_tokens, sample=sample, processors=warpers, end_ids=end_ids, generator=generator
    )


def generate_keywords(config: SamplingConfig) -> dict[str, Any]:
    """Temperature, top-p and top-k as keywords of HF `generate`; greedy overrides a model that samples by default."""
    if config.temperature == 0:
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return {
        "do_sample": True,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
    }
