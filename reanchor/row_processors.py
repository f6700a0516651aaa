"""HF processors made for a whole batch, narrowed to one of its rows; it knows no model and no tree."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process

# what HF's processors hold of every row of a batch
_BY_ROW = ("prompt_ignore_length", "encoder_input_ids", "generated_ngrams")


def processors_for_row(processors: Iterable[Any], row: int, rows: int) -> LogitsProcessorList:
    """The processors as row `row` of `rows` meets them. Custom ones are themselves; HF's are copies, so that what
    one row leaves in them is not the next one's.
    """
    return LogitsProcessorList(narrow_processor(each, row, rows) for each in processors)


def narrow_processor(processor: Any, row: int, rows: int) -> Any:
    if type(processor).__module__ != logits_process.__name__:
        return processor
    alone = copy(processor)
    for name in _BY_ROW:
        held = getattr(alone, name, None)
        if isinstance(held, (Tensor, list)):
            place = row * len(held) // rows
            setattr(alone, name, held[place : place + 1])
    if isinstance(alone, logits_process.EncoderNoRepeatNGramLogitsProcessor):
        alone.batch_size = 1
    if isinstance(alone, logits_process.PrefixConstrainedLogitsProcessor):
        allowed = alone._prefix_allowed_tokens_fn
        alone._prefix_allowed_tokens_fn = lambda _only, prefix: allowed(row, prefix)
    return alone
