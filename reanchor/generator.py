"""The drop-in for `model.generate`: the only room that knows HF's generation config, processors, criteria, streamers.

HF's own generate runs around the decode loop (`custom_generate=`): it validates arguments, merges configs and
builds processors and criteria, so that what a user sets means what it means there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import (
    EosTokenCriteria,
    GenerateDecoderOnlyOutput,
    MaxLengthCriteria,
    StopStringCriteria,
)

from reanchor.acceptance_watch import AcceptanceWatch
from reanchor.arguments import MODES, check_arguments, refuse_mode, settled
from reanchor.cache import TreeCache
from reanchor.config import DecodeConfig
from reanchor.decoder import SpeculativeDecoder
from reanchor.drafters.base import Drafter
from reanchor.proposal.sources import Source
from reanchor.row_processors import processors_for_row
from reanchor.sampling import ScoreRecord, TokenSelector
from reanchor.stats import Recorder, Stats

_JUDGED = (EosTokenCriteria, MaxLengthCriteria)  # by the selector itself


@dataclass
class ReAnchorOutput(GenerateDecoderOnlyOutput):
    """HF's output with `stats`, added up over the rows of a batch."""

    stats: Stats | None = None


@dataclass(frozen=True)
class _Row:
    """What decoding one row of a batch gave."""

    tokens: list[int]
    stats: Stats
    record: ScoreRecord | None
    cache: TreeCache | None


class ReAnchorGenerator:
    """Generates as `target.generate` does, with a drafter.

    Args:
        target: an HF causal LM.
        drafter: from `load_drafter`; None: method auto with the sources that need no draft.
        tokenizer: needed for `stop_strings` only.
        config, knobs: `DecodeConfig`, or its fields and those of `ReAnchorRules` as keywords (`method="dflash"`).
        sources: further sources of method auto.

    Raises:
        ValueError: for a knob that is not there, a value that is not allowed, or a method that needs a drafter.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        drafter: Drafter | None = None,
        tokenizer: Any = None,
        config: DecodeConfig | None = None,
        *,
        sources: Sequence[Source] = (),
        **knobs: Any,
    ) -> None:
        config = (config or DecodeConfig()).having(**knobs)
        self.decoder = SpeculativeDecoder(target, drafter, config, sources=sources)
        self.watch = AcceptanceWatch(self.decoder.drafter.proposals)
        self.target, self.tokenizer = target, tokenizer

    @classmethod
    def from_pretrained(
        cls,
        target: str,
        drafter: str | None = "default",
        *,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        confidence_threshold: float = 0.0,
        config: DecodeConfig | None = None,
        sources: Sequence[Source] = (),
        **knobs: Any,
    ) -> ReAnchorGenerator:
        """Load both by folder, GGUF file or hub id.

        Args:
            target, drafter, dtype, device, confidence_threshold: as `reanchor.loading.load_pair` takes them.
            config, sources, knobs: as the class takes them.
        """
        from reanchor.loading import load_pair

        checked = (config or DecodeConfig()).having(**knobs)  # before weights are read
        pair = load_pair(
            target,
            None if checked.method == "plain" else drafter,
            dtype=dtype,
            device=device,
            confidence_threshold=confidence_threshold,
        )
        return cls(pair.target, pair.drafter, pair.tokenizer, checked, sources=sources)

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        prefix_allowed_tokens_fn: Any = None,
        synced_gpus: bool | None = None,
        streamer: Any = None,
        *,
        tokenizer: Any = None,
        **kwargs: Any,
    ) -> Tensor | ReAnchorOutput:
        """`GenerationMixin.generate` with the same arguments, priorities and return types.

        Batches and `num_return_sequences` run row by row. Raises ValueError for what cannot be exact here,
        with the reason, before anything runs.
        """
        options = {"prefix_allowed_tokens_fn": prefix_allowed_tokens_fn, "synced_gpus": synced_gpus}
        kwargs.update({name: value for name, value in options.items() if value is not None})
        check_arguments(inputs, kwargs)
        kwargs = settled(self.target, generation_config, kwargs)
        stopping_criteria = StoppingCriteriaList(stopping_criteria or ())
        sources = (kwargs.get("stop_strings"), getattr(generation_config, "stop_strings", None))
        stop_strings = next(filter(None, sources), self.target.generation_config.stop_strings)
        if stop_strings:
            # HF gives a custom mode no tokenizer to make this criterion with
            stopping_criteria.append(self._stop_criterion(stop_strings, tokenizer or self.tokenizer))
            kwargs["stop_strings"] = None
        generate: Any = self.target.generate
        return generate(
            inputs,
            generation_config=generation_config,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            streamer=streamer,
            custom_generate=_Run(self.decoder, streamer, self.watch),
            **kwargs,
        )

    def _stop_criterion(self, stop_strings: str | list[str], tokenizer: Any) -> StopStringCriteria:
        if tokenizer is None:
            raise ValueError(f"stop_strings={stop_strings!r} need a tokenizer; give one to ReAnchorGenerator")
        return StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)


def speculative(
    target: PreTrainedModel,
    drafter: Drafter | None = None,
    config: DecodeConfig | None = None,
    *,
    streamer: Any = None,
    **knobs: Any,
) -> _Run:
    """Decode speculatively from HF's own `generate`: `model.generate(**inputs, custom_generate=speculative(model))`.

    Args: as `ReAnchorGenerator` takes them. HF gives a custom mode no streamer, and drops the one given to `generate`
    after the prompt: give it here too.
    """
    generator = ReAnchorGenerator(target, drafter, None, config, **knobs)
    return _Run(generator.decoder, streamer, generator.watch)


class _Run:
    """One call of generate: what HF calls back with everything prepared."""

    def __init__(self, decoder: SpeculativeDecoder, streamer: Any, watch: AcceptanceWatch) -> None:
        self.decoder, self.streamer, self.watch = decoder, streamer, watch

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Tensor | ReAnchorOutput:
        check_mode(generation_config, batch=len(input_ids))
        input_ids = input_ids.to(self.decoder.target.device)
        mask = model_kwargs.get("attention_mask")
        rows = [
            self._row(
                row,
                row if mask is None else unpadded(row, mask[index]),
                processors_for_row(logits_processor, index, len(input_ids)),
                stopping_criteria,
                generation_config,
            )
            for index, row in enumerate(input_ids)
        ]
        if self.streamer is not None:
            self.streamer.end()
        return self._output(input_ids, rows, generation_config)

    def _row(
        self,
        padded: Tensor,
        prompt: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
    ) -> _Row:
        """Decode one row. padded: [width] the prompt with its padding, which HF's processors, criteria and max_length
        count from.
        """
        prompt = self.decoder.check_prompt(prompt)
        wanted = config.output_scores or config.output_logits
        record = ScoreRecord() if wanted and config.return_dict_in_generate else None
        selector = TokenSelector(
            padded,
            config.max_length - len(padded),
            sample=bool(config.do_sample),
            processors=processors,
            criteria=[each for each in criteria if type(each) not in _JUDGED],
            end_ids=end_ids(config),
            record=record,
        )
        recorder = Recorder(
            str(self.decoder.config.method),
            len(prompt),
            self.decoder.synchronize(),
            proposals=self.decoder.drafter.proposals,
            limit=config.max_length - len(padded),
        )
        tokens: list[int] = []
        cache: TreeCache | None = None
        for round_ in self.decoder.decode(prompt, selector=selector, stage=recorder.stage):
            recorder.add(round_)
            self.watch.see(recorder.stats)
            tokens += round_.tokens
            cache = cast(TreeCache, round_.cache)
            if self.streamer is not None:
                self.streamer.put(torch.tensor(round_.tokens))
        assert cache is not None
        cache.hand_over()
        whole = len(prompt) == len(padded)  # HF goes on only with a row for every token of the sequence
        return _Row(tokens, recorder.stats, record, cache if whole else None)

    def _output(
        self, input_ids: Tensor, rows: list[_Row], config: GenerationConfig
    ) -> Tensor | ReAnchorOutput:
        new = [torch.tensor(row.tokens, device=input_ids.device) for row in rows]
        pad = config._pad_token_tensor
        filler = int(pad) if pad is not None else 0  # with one row nothing is padded
        sequences = torch.cat([input_ids, pad_sequence(new, batch_first=True, padding_value=filler)], dim=1)
        if not config.return_dict_in_generate:
            return sequences
        stats = replace(rows[0].stats)
        for row in rows[1:]:
            stats.add(row.stats)
        record = rows[0].record if len(rows) == 1 else None
        fields: dict[str, Any] = {
            "scores": tuple(record.scores) if record and config.output_scores else None,
            "logits": tuple(record.logits) if record and config.output_logits else None,
            _cache_field(): rows[0].cache if len(rows) == 1 else None,
        }
        return ReAnchorOutput(sequences=cast(torch.LongTensor, sequences), stats=stats, **fields)


def _cache_field() -> str:
    """HF renamed the field in 5.24."""
    return "cache" if "cache" in GenerateDecoderOnlyOutput.__dataclass_fields__ else "past_key_values"


def end_ids(config: GenerationConfig) -> list[int]:
    """End-of-sequence ids of a prepared generation config."""
    ids = config._eos_token_tensor
    return [] if ids is None else ids.flatten().tolist()


def check_mode(config: GenerationConfig, batch: int) -> None:
    """Raise ValueError for generation modes a tree cannot reproduce exactly."""
    for name in MODES:
        refuse_mode(name, getattr(config, name, None))
    if config.do_sample and config.top_p is not None and not 0 < config.top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {config.top_p}")
    if batch > 1 and (config.output_scores or config.output_logits):
        raise ValueError(
            f"output_scores and output_logits are given for one row only, got {batch}; rows end at different tokens"
        )


def unpadded(prompt: Tensor, mask: Tensor) -> Tensor:
    """The prompt without its left padding; ValueError when the mask hides anything else. prompt, mask: [P]"""
    if not bool(mask.any()):
        return prompt[:0]
    start = int(mask.long().argmax())
    if not bool(mask[start:].all()):
        raise ValueError(
            "attention_mask hides tokens after the first visible one; only left padding is supported (without a "
            "mask, HF hides every pad token of the prompt: pass attention_mask to keep them)"
        )
    return prompt[start:]
