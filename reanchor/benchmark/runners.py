"""Runners of measured methods: our loop, and HF's own generate. A runner answers token ids with an Outcome.

All time is wall-clock with the device's work finished; prefill and decode apart; loading and tokenisation outside.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from reanchor.benchmark import memory
from reanchor.benchmark.outcome import Outcome
from reanchor.config import DecodeConfig, SamplingConfig
from reanchor.core import Round
from reanchor.decoder import SpeculativeDecoder
from reanchor.drafters.base import Drafter
from reanchor.hardware import synchronizer
from reanchor.sampling import generate_keywords
from reanchor.stats import Recorder
from reanchor.target import end_ids


class MethodRunner(Protocol):
    name: str

    def decode(self, ids: list[int], sampling: SamplingConfig) -> Outcome: ...


class PassCounter(Protocol):
    """Counts something over the rounds of a decode, outside the clock."""

    def see(self, round_: Round) -> None: ...

    def take(self) -> dict[str, int]:
        """The counts since the last call."""


class EngineRunner:
    """Our own loop."""

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        drafter: Drafter | None,
        config: DecodeConfig,
        counter: PassCounter | None = None,
    ) -> None:
        self.name, self.ends, self.counter = name, end_ids(model), counter
        self.decoder = SpeculativeDecoder(model, None if config.method == "plain" else drafter, config)

    def decode(self, ids: list[int], sampling: SamplingConfig) -> Outcome:
        device = self.decoder.target.device
        recorder = Recorder(
            str(self.decoder.config.method),
            len(ids),
            self.decoder.synchronize(),
            proposals=self.decoder.drafter.proposals,
            limit=sampling.max_new_tokens,
        )
        tokens: list[int] = []
        memory.reset_peak(device)
        for round_ in self.decoder.decode(ids, sampling, end_ids=self.ends, stage=recorder.stage):
            recorder.add(round_)
            tokens += round_.tokens
            if self.counter is not None:
                self.counter.see(round_)
        stats = recorder.stats
        return Outcome(
            tokens,
            stats.time_to_first_token,
            stats.decode_seconds,
            len(stats.rounds),
            stats.rounds,
            memory.peak(device),
            {} if self.counter is None else self.counter.take(),
        )

    def costs(self, sample: bool) -> dict[str, Any] | None:
        """What method auto weighed its rounds by: seconds by nodes and by blocks behind `context` tokens, and more for
        every token of context; None for other methods, and where a budget is given.
        """
        found = self.decoder.costs(sample)
        if found is None:
            return None
        return {"context": found.measured, **by_size(found.curves), "slopes": by_size(found.slopes)}


def by_size(curves: dict[str, dict[int, float]]) -> dict[str, dict[str, float]]:
    """With sizes as JSON has them."""
    return {name: {str(size): cost for size, cost in curve.items()} for name, curve in curves.items()}


class PassClock:
    """Counts a model's passes and notes when the first was done."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.passes, self.started, self.first, self.ended = model, 0, 0.0, 0.0, 0.0

    def now(self) -> float:
        wait = synchronizer(self.model.device)
        if wait is not None:
            wait()
        return time.perf_counter()

    @contextmanager
    def running(self) -> Iterator[None]:
        handle = self.model.register_forward_hook(self._passed)
        self.started = self.now()
        try:
            yield
        finally:
            self.ended = self.now()
            handle.remove()

    def _passed(self, *_args: object) -> None:
        self.passes += 1
        if self.passes == 1:
            self.first = self.now()

    def outcome(self, tokens: list[int], prefilled: int = 1) -> Outcome:
        return Outcome(
            tokens,
            self.first - self.started,
            self.ended - self.first,
            self.passes - 1,
            [],
            memory.peak(self.model.device),
            prefilled=prefilled,
        )


class PassTokens:
    """A streamer that notes how many tokens each pass gave; HF puts the prompt first."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def put(self, value: Tensor) -> None:
        self.counts.append(value.numel())

    def end(self) -> None:
        pass


class HuggingFaceRunner:
    """HF's own generate; `extra` are arguments of it, as for prompt lookup, which drafts in its first pass already."""

    def __init__(self, name: str, model: PreTrainedModel, **extra: Any) -> None:
        self.name, self.model, self.extra = name, model, extra
        ends = end_ids(model)
        # nothing of the model's own defaults but its ends: a penalty among them would make it another distribution
        self.defaults = GenerationConfig(eos_token_id=list(ends) or None, pad_token_id=ends[0] if ends else 0)

    def decode(self, ids: list[int], sampling: SamplingConfig) -> Outcome:
        prompt = torch.tensor([ids], device=self.model.device)
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        memory.reset_peak(self.model.device)
        clock, generate, given = PassClock(self.model), self.model.generate, PassTokens()
        with self.own_defaults(), clock.running():
            output = generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=sampling.max_new_tokens,
                **generate_keywords(sampling),
                **({"streamer": given, **self.extra} if self.extra else {}),
            )
        assert isinstance(output, Tensor)
        return clock.outcome(output[0, len(ids) :].tolist(), given.counts[1] if self.extra else 1)

    @contextmanager
    def own_defaults(self) -> Iterator[None]:
        theirs, self.model.generation_config = self.model.generation_config, self.defaults
        try:
            yield
        finally:
            self.model.generation_config = theirs
