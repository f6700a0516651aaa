"""Small stand-ins for a benchmark: letters as tokens, a drafter that is right by plan, methods with a script."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch

from reanchor.benchmark.conversation import Conversation
from reanchor.benchmark.gate import Gate
from reanchor.benchmark.harness import Bench
from reanchor.benchmark.outcome import Outcome
from reanchor.benchmark.record import PromptRecord
from reanchor.benchmark.runners import EngineRunner, HuggingFaceRunner
from reanchor.config import DecodeConfig, SamplingConfig
from reanchor.core import Draft
from reanchor.datasets import Prompt, PromptSet
from reanchor.drafters.base import Drafter
from reanchor.stats import RoundStats
from reanchor.target import Target
from tests.tiny import VOCAB, tiny_target

HEADER = {"target": "t", "drafter": None, "dtype": "float32", "methods": ["plain"]}
METHODS = ("hf", "plain", "dflash", "reanchor", "ddtree")


class Letters:
    """A tokenizer of one token a letter, without a chat template."""

    chat_template = None

    def __call__(self, text: str) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[ord(letter) % VOCAB for letter in text])

    def decode(self, tokens, **_options) -> str:
        return "".join(chr(token + 64) for token in tokens)


class Oracle(Drafter):
    """Drafts the target's own continuation, wrong at positions that a multiple of `miss` divides."""

    tap_layers = (0, 1)
    block_size, proposals = 4, 3

    def __init__(self, model, miss: int = 4) -> None:
        self.model, self.miss = model, miss
        self.tokens: list[int] = []

    def prompt(self, ids: list[int]) -> None:
        """Told what is decoded; a real drafter reads it from the features."""
        output = self.model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)
        self.tokens = output[0].tolist()

    def new_cache(self):
        return []

    def commit(self, features, cache) -> None:
        cache.extend(features)

    def draft(self, anchor, retained, shifts, cache, top_k=0) -> Draft:
        offsets = (0, *shifts)
        anchors = [anchor, *(retained.tokens[d - 1] for d in shifts)]
        blocks = [[first, *self.after(len(cache) + d)] for d, first in zip(offsets, anchors, strict=True)]
        if not top_k:
            return Draft(offsets, blocks)
        rows = [[[t, (t + 1) % VOCAB, (t + VOCAB - 1) % VOCAB] for t in block[1:]] for block in blocks]
        scores = [[math.log(p) for p in (0.6, 0.2, 0.2)]] * self.proposals
        return Draft(offsets, blocks, torch.tensor(rows), torch.tensor([scores] * len(blocks)))

    def after(self, place: int) -> list[int]:
        wanted = range(place + 1, place + 1 + self.proposals)
        truth = [self.tokens[each] if each < len(self.tokens) else 0 for each in wanted]
        return [
            (t + 1) % VOCAB if each % self.miss == 0 else t for each, t in zip(wanted, truth, strict=True)
        ]


class Prompted:
    """An engine whose oracle is told the prompt."""

    def __init__(self, engine: EngineRunner, oracle: Oracle) -> None:
        self.engine, self.oracle, self.name = engine, oracle, engine.name
        self.asked: list[list[int]] = []

    def decode(self, ids, sampling) -> Outcome:
        self.asked.append(ids)
        self.oracle.prompt(ids)
        return self.engine.decode(ids, sampling)


def tiny_bench(dtype=torch.float32, new=12, methods=METHODS, **config) -> Bench:
    model = tiny_target(dtype=dtype)
    oracle = Oracle(model)
    made = []
    for method in methods:
        if method == "hf":
            made.append(HuggingFaceRunner("hf", model))
        else:
            engine = EngineRunner(method, model, oracle, DecodeConfig(method=method, **config))
            made.append(Prompted(engine, oracle))
    return Bench(made, Conversation(Letters()), Gate(Target(model)), SamplingConfig(new, seed=0), 512)


def tiny_set(count: int = 3, name: str = "own", turns: int = 1) -> PromptSet:
    words = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")
    prompts = [
        Prompt(f"p{at}", tuple(words[at] + "!" * turn for turn in range(turns))) for at in range(count)
    ]
    return PromptSet(name, tuple(prompts), count)


def round_of(tokens: int, seconds: float = 0.1, nodes: int = 4, depth: int = 3) -> RoundStats:
    return RoundStats(
        tokens, tokens - 1, nodes, 1, 0, 0, depth, 0, 0, seconds, {"verify": seconds}, full=tokens > depth
    )


def outcome_of(lengths: list[int], seconds: float = 0.1, tokens: list[int] | None = None) -> Outcome:
    """An outcome with the given tokens a round, the prefill's one before them."""
    rounds = [round_of(length, seconds) for length in lengths]
    made = tokens if tokens is not None else list(range(1 + sum(lengths)))
    return Outcome(made, 0.05, seconds * len(lengths), len(lengths), rounds, 1000)


def record_of(dataset="own", id="p0", temperature=0.0, **outcomes: Outcome) -> PromptRecord:
    return PromptRecord(dataset, id, temperature, list(outcomes), [5], [outcomes])
