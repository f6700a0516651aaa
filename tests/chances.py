"""Exact probabilities of a tiny model's first tokens, and a test of counts against them."""

from __future__ import annotations

import itertools

import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import LogitsProcessorList, Qwen3Config, Qwen3ForCausalLM
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

VOCAB, DEPTH = 5, 3
PROMPT = torch.tensor([1, 4, 2])


def tiny_model() -> Qwen3ForCausalLM:
    torch.manual_seed(3)
    shape = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "initializer_range": 0.15}
    return Qwen3ForCausalLM(Qwen3Config(**shape, eos_token_id=None, pad_token_id=0)).eval()


def processors(name: str) -> LogitsProcessorList:
    return {
        "t1": LogitsProcessorList(),
        "t0.7-top-p": LogitsProcessorList([TemperatureLogitsWarper(0.7), TopPLogitsWarper(0.8)]),
        "t1.3-top-k": LogitsProcessorList([TemperatureLogitsWarper(1.3), TopKLogitsWarper(3)]),
        "penalty": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.8)]),
    }[name]


@torch.no_grad()
def exact(model, rules: LogitsProcessorList) -> Tensor:
    """Joint probability of the first DEPTH tokens: [VOCAB] * DEPTH"""
    joint = torch.zeros([VOCAB] * DEPTH, dtype=torch.float64)
    for path in itertools.product(range(VOCAB), repeat=DEPTH):
        text, probability = PROMPT.tolist(), 1.0
        for token in path:
            ids = torch.tensor([text])
            scores = rules(ids, model(ids).logits[:, -1].float())
            probability *= float(scores.softmax(-1)[0, token])
            text.append(token)
        joint[path] = probability
    return joint


def p_value(counts: Tensor, joint: Tensor) -> float:
    """Chi-squared test, cells expected less than five times put together; impossible cells must be empty."""
    if counts[joint == 0].sum() > 0:
        return 0.0
    expected = (joint * counts.sum()).flatten()
    seen = counts.flatten()
    small = expected < 5
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    seen = torch.cat([seen[~small], seen[small].sum()[None]])
    keep = expected > 0
    return float(
        chisquare(seen[keep].numpy(), (expected[keep] * seen.sum() / expected[keep].sum()).numpy()).pvalue
    )
