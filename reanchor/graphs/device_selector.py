"""The target's choice at every node where the device makes it: an argmax, or a draw that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from reanchor.argmax import argmax
from reanchor.config import DecodeConfig
from reanchor.sampling import TokenSelector

# processors of fixed shapes that ask the host nothing
CAPTURABLE = {
    getattr(logits_process, f"{name}LogitsWarper") for name in ("Temperature", "TopK", "TopP", "MinP")
}


def selector_refusal(selector: TokenSelector, config: DecodeConfig) -> str | None:
    """Why a decode's tokens are not chosen on the device."""
    if selector.sample and (config.sampling_mode == "rejection" or config.couples):
        return "drafts that know the target's draw, or are judged by rejection, are the host's"
    if selector.criteria or selector.record is not None or type(selector) is not TokenSelector:
        return "criteria and recorded scores are the host's"
    if not (selector.sample or not selector.processors):
        return "processors of greedy decoding are the host's"
    others = {type(each).__name__ for each in selector.processors if type(each) not in CAPTURABLE}
    return f"{', '.join(sorted(others))} may ask the host" if others else None


class DeviceSelector:
    """Tokens [N] of logits [N, V]: the largest, or one draw each from what the processors leave.

    A draw is a race: token i arrives after an exponential time over its probability, and the first is drawn.
    `torch.multinomial` does the same, but asks the host first whether its probabilities are numbers.
    """

    def __init__(self, selector: TokenSelector) -> None:
        self.rules = rules_of(selector)
        self.processors = LogitsProcessorList(selector.processors)
        device = selector.prefix.device
        self.generator = torch.Generator(device) if selector.sample else None
        self.text: Any = selector.prefix.new_empty(1, 0)  # which no processor here reads

    def begin(self, selector: TokenSelector) -> None:
        """Draw what this decode's generator says."""
        if self.generator is not None:
            self.generator.manual_seed(selector.seed())

    def pick(self, logits: Tensor) -> Tensor:
        if self.generator is None:
            return argmax(logits)
        scores = self.processors(self.text, logits.to(torch.float32, copy=True))
        times = torch.empty_like(scores).exponential_(generator=self.generator)
        return (scores.softmax(-1) / times).argmax(-1)


def rules_of(selector: TokenSelector) -> tuple[bool, Sequence[object]]:
    """What tells two choices apart: regions are made for one."""
    return selector.sample, [(type(each), sorted(vars(each).items())) for each in selector.processors]
