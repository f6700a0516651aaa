"""Inspection of a drafter's checkpoint: what was recognised, in words and numbers; it loads no tensor."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from reanchor.drafters.checkpoint import Checkpoint
from reanchor.drafters.drafter_config import DrafterConfig, LayerRule
from reanchor.drafters.load import build, check_shapes, locate
from reanchor.drafters.names import renamed
from reanchor.drafters.published import find
from reanchor.drafters.recognition import recognise

FAMILY = {"dflash": "DFlash", "dflash2": "DFlash 2", "dspark": "DSpark", "domino": "Domino"}


def inspect_drafter(path_or_id: str | Path) -> dict[str, Any]:
    """JSON-ready. Raises ValueError, with the reason, for what `load_drafter` would refuse without a target."""
    checkpoint = Checkpoint(locate(path_or_id))
    found, shapes = recognise(checkpoint), renamed(checkpoint.shapes)
    config = found.config
    check_shapes(build(config), shapes)
    entry = find(path_or_id)
    return {
        "dialect": config.dialect,
        "family": FAMILY[config.family],
        "block_size": config.block_size,
        "proposals": config.proposals,
        "alignment": alignment(config),
        "target_layers_read": list(config.tap_layers),
        "mask_token_id": config.mask_token_id,
        "body": body(config),
        "attention": attention(config.rules),
        "rope": dict(config.rope),
        "heads": heads(config),
        "vocabulary": vocabulary(config),
        "scales": scales(config),
        "parameters": sum(prod(shape) for shape in shapes.values()),
        "expected_target": config.target or (entry.target if entry else expected_target(config)),
        "trained_with_thinking": entry.thinking if entry else None,
        "unused_keys": list(found.unused_keys),
        "unused_tensors": list(found.unused_tensors),
    }


def alignment(config: DrafterConfig) -> str:
    if config.shifted:
        return "shifted: slot j predicts the token after it, the anchor's slot too"
    return "unshifted: slot j predicts its own token, the anchor's slot nothing"


def body(config: DrafterConfig) -> str:
    kind = "Gemma 4" if config.gemma else "Qwen3"
    heads = f"{config.heads} heads on {config.kv_heads} of size {config.head_dim}"
    bias = ", biases" if config.bias else ""
    return f"{kind}, {config.layers} layers, width {config.hidden_size}/{config.intermediate_size}, {heads}{bias}"


def attention(rules: tuple[LayerRule, ...]) -> list[str]:
    """One line a run of equal layers."""
    lines: list[tuple[LayerRule, int]] = []
    for rule in rules:
        if lines and lines[-1][0] == rule:
            lines[-1] = (rule, lines[-1][1] + 1)
        else:
            lines.append((rule, 1))
    return [f"{count} × {describe_rule(rule)}" for rule, count in lines]


def describe_rule(rule: LayerRule) -> str:
    reach = "full" if rule.window is None else f"window {rule.window}"
    return f"{reach}, {'causal' if rule.causal else 'bidirectional'}"


def heads(config: DrafterConfig) -> list[str]:
    found = []
    if config.markov:
        found.append(f"Markov, {config.markov.kind}, rank {config.markov.rank}")
    if config.domino:
        shape = f"state {config.domino.state}, width {config.domino.width}"
        found.append(f"GRU correction, {shape}, after {config.domino.prefix} uncorrected")
    if config.convolution:
        found.append(
            f"convolutions, kernel {config.convolution.kernel}, groups of {config.convolution.group}"
        )
    if config.selector:
        found.append(f"selector, rank {config.selector.rank}, {config.selector.top_k} candidates a slot")
    if config.confidence:
        plain = all(each == 1 for each in config.confidence.temperatures)
        found.append("confidence" + ("" if plain else ", calibrated by position"))
    return found


def vocabulary(config: DrafterConfig) -> str:
    ends = [
        embedding(config),
        "its own head" if config.own_head else "the target's head",
    ]
    reduced = f", drafts {config.draft_vocab_size} of them (d2t)" if config.draft_vocab_size else ""
    return f"{config.vocab_size} tokens{reduced}; {' and '.join(ends)}"


def embedding(config: DrafterConfig) -> str:
    """Whose, and for a borrowed one, how it is scaled: targets of the Gemma family scale theirs."""
    if config.own_embedding:
        return "its own embedding"
    if config.embedding_scale is None:
        return "the target's embedding as the target scales it"
    return f"the target's raw embedding times {config.embedding_scale:g}"


def scales(config: DrafterConfig) -> dict[str, float]:
    named = {
        "embedding": config.embedding_scale,
        "output": None if config.output_multiplier == 1.0 else config.output_multiplier,
        "soft cap": config.softcap,
    }
    return {name: value for name, value in named.items() if value is not None}


def expected_target(config: DrafterConfig) -> str:
    layers = f"{config.target_layers} layers, " if config.target_layers else ""
    return f"a causal LM of {layers}width {config.target_hidden_size}, {config.vocab_size} tokens"
