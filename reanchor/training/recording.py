"""The target's own responses to prompts, batch by batch into a JSONL that an interrupted run goes on with."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reanchor.config import SamplingConfig
from reanchor.sampling import generate_keywords
from reanchor.target import Target, end_ids, tapped
from reanchor.training.feature_store import FeatureStore
from reanchor.training.initialization import taps_of
from reanchor.training.record_config import RecordConfig
from reanchor.training.responses import Response

Say = Callable[[str], None]


@dataclass(frozen=True)
class PendingPrompt:
    """A rendered prompt; its key says which prompt of which set it is."""

    key: str
    source: str
    ids: list[int]


def record(
    model: PreTrainedModel,
    questions: Sequence[PendingPrompt],
    out: Path,
    config: RecordConfig,
    say: Say,
    features: Path | None = None,
) -> int:
    """Answer what `out` does not answer yet; gives how many responses were written. The folder `features` keeps what
    `config.taps` gave meanwhile, as training reads it.
    """
    if features is None and config.taps is not None:
        raise ValueError(f"taps {config.taps!r} are kept in a folder of features: give --features FOLDER")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {str(out.parent)!r} to write {out.name!r} into: make it first")
    teacher = None if features is None else FeatureStore(Target(model, tap_layers(config, model)), features)
    done = answered(out)
    asked = {question.key for question in questions}
    if done and not done & asked:
        raise ValueError(f"{str(out)!r} holds responses to other prompts: give another --out")
    left = [question for question in questions if question.key not in done]
    start, tokens = time.monotonic(), 0
    for first in range(0, len(left), config.batch):
        group = left[first : first + config.batch]
        torch.manual_seed(config.seed + len(done) + first)
        responses = answer(model, [question.ids for question in group], config, teacher)
        append(out, group, responses)
        tokens += sum(len(response) for response in responses)
        count, seconds = len(done) + first + len(group), time.monotonic() - start
        say(f"{count}/{len(done) + len(left)} responses, {tokens / seconds:.0f} tokens/s")
    return len(left)


def answered(out: Path) -> set[str]:
    """Keys of the whole lines in `out`; a line that was cut off is taken away, to be written again."""
    if not out.exists():
        return set()
    data = out.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with out.open("r+b") as file:
            file.truncate(len(whole))
    try:
        return {str(json.loads(line)["key"]) for line in whole.splitlines()}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{str(out)!r} is no file of responses with keys: give another --out") from None


def append(out: Path, group: Sequence[PendingPrompt], responses: Sequence[list[int]]) -> None:
    lines = [
        json.dumps(
            {"key": each.key, "source": each.source, "prompt_ids": each.ids, "response_ids": response},
            separators=(",", ":"),
        )
        for each, response in zip(group, responses, strict=True)
    ]
    try:
        with out.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ValueError(
            f"cannot write {str(out)!r} ({error.strerror}): free some space and run the same command again"
        ) from error


@torch.no_grad()
def answer(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    config: RecordConfig,
    teacher: FeatureStore | None = None,
) -> list[list[int]]:
    """One response a prompt, its end token included. Prompts are padded on the left and told apart by a mask."""
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    rows = [[0] * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)]
    mask = [[0] * pad + [1] * len(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
    ends = end_ids(model)
    generate: Any = model.generate
    taps = () if teacher is None else teacher.target.tap_layers
    passes: dict[int, list[Tensor]] = {tap: [] for tap in taps}
    with tapped(model.get_decoder().layers, taps, lambda tap, states: passes[tap].append(states.cpu())):
        output = generate(
            torch.tensor(rows, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            max_new_tokens=config.max_new_tokens,
            pad_token_id=min(ends, default=0),
            **generate_keywords(SamplingConfig(temperature=config.temperature)),
        )
    responses = [ended(row, ends) for row in output[:, longest:].tolist()]
    if teacher is not None:
        states = torch.cat([torch.cat(passes[tap], 1) for tap in taps], -1)  # [B, S, Dc]
        for kept, prompt, response, pad in zip(states, prompts, responses, padding, strict=True):
            read = len(prompt) + len(response) - 1  # the last token was never read
            teacher.keep(Response(tuple(prompt), tuple(response)), kept[pad : pad + read])
    return responses


def tap_layers(config: RecordConfig, model: PreTrainedModel) -> tuple[int, ...]:
    """Of the drafter to be trained, as a new one would have them."""
    depth = model.config.get_text_config().num_hidden_layers
    return tuple(taps_of(config.taps, depth))


def ended(tokens: list[int], ends: Collection[int]) -> list[int]:
    """Up to and with the first end token; behind it the batch only waited for others."""
    stop = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: stop + 1]
