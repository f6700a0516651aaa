"""Decode of one prompt by one method: the tokens, the text, the figures and, for drawing, every round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from reanchor import DecodeConfig, ReAnchorGenerator, Round, SamplingConfig, SpeculativeDecoder, Stats
from reanchor.loading import Pair
from reanchor.sampling import generate_keywords
from reanchor.target import end_ids

from .console import say


@dataclass(frozen=True)
class Request:
    """What is to be answered and how its tokens are chosen."""

    ids: list[int]
    sampling: SamplingConfig
    stop: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"prompt_ids": self.ids, "sampling_config": asdict(self.sampling), "stop": list(self.stop)}


@dataclass(frozen=True)
class DecodeRun:
    """What one method made of a request."""

    config: DecodeConfig
    tokens: list[int]
    text: str
    finish: str  # end, stop, length or context
    stats: Stats
    rounds: list[Round]  # the first is the prefill's
    attention: dict[str, Any]  # what attended to the trees, and why other backends did not
    forward: dict[str, Any]  # whose forward pass the target's was, and why not the fused one

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish,
            "decode_config": asdict(self.config),
            "attention": self.attention,
            "forward": self.forward,
            "stats": self.stats.to_dict(),
        }


class KeepingDecoder(SpeculativeDecoder):
    """A decoder that remembers its rounds."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rounds: list[Round] = []

    def decode(self, *args: Any, **kwargs: Any) -> Iterator[Round]:
        for round_ in super().decode(*args, **kwargs):
            self.rounds.append(round_)
            yield round_


def run_method(pair: Pair, request: Request, config: DecodeConfig, streamer: Any = None) -> DecodeRun:
    """Answer a request. Raises ValueError for a request that the target cannot take."""
    drafter = None if config.method == "plain" else pair.drafter
    generator = ReAnchorGenerator(pair.target, drafter, pair.tokenizer, config)
    generator.decoder = decoder = KeepingDecoder(pair.target, drafter, config, say)
    prompt = decoder.check_prompt(torch.tensor(request.ids, dtype=torch.long, device=decoder.target.device))
    context = decoder.target.context_length
    room = request.sampling.max_new_tokens if context is None else context - len(prompt)
    length = min(request.sampling.max_new_tokens, room)
    if request.sampling.seed is not None:
        torch.manual_seed(request.sampling.seed)
    keywords = generate_keywords(request.sampling)
    if request.stop:
        keywords["stop_strings"] = list(request.stop)
    output = generator.generate(
        prompt[None],
        attention_mask=torch.ones_like(prompt)[None],
        max_new_tokens=length,
        streamer=streamer,
        return_dict_in_generate=True,
        **keywords,
    )
    assert not isinstance(output, torch.Tensor) and output.stats is not None
    tokens = output.sequences[0, len(prompt) :].tolist()
    text = pair.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    limit = "length" if length == request.sampling.max_new_tokens else "context"
    ended = finish(pair, request, tokens, text, length, limit)
    attention, forward = decoder.target.attention.report(), decoder.forward_report()
    return DecodeRun(config, tokens, text, ended, output.stats, decoder.rounds, attention, forward)


def finish(pair: Pair, request: Request, tokens: list[int], text: str, length: int, limit: str) -> str:
    """Why decoding ended."""
    if tokens[-1] in end_ids(pair.target):
        return "end"
    return limit if len(tokens) == length and not any(stop in text for stop in request.stop) else "stop"
