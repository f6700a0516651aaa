"""Fit of a drafter to a target. It knows both descriptions and no weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reanchor.drafters.drafter_config import DrafterConfig


@dataclass(frozen=True)
class TargetParts:
    """What a drafter needs of its target."""

    hidden_size: int
    layers: int
    vocab_size: int
    embed: Any
    head: Any


def target_parts(target: Any) -> TargetParts:
    """`target`: a transformers PreTrainedModel with a language-model head."""
    config = target.config.get_text_config()
    embed, head = target.get_input_embeddings(), target.get_output_embeddings()
    if head is None:
        raise ValueError(f"{type(target).__name__} has no output head: load it with AutoModelForCausalLM")
    return TargetParts(config.hidden_size, config.num_hidden_layers, config.vocab_size, embed, head)


def check_fit(config: DrafterConfig, host: TargetParts) -> None:
    if config.target_hidden_size != host.hidden_size:
        raise misfit(f"its width is {config.target_hidden_size}, the target's {host.hidden_size}")
    if config.hidden_size != host.hidden_size and not (config.own_embedding and config.own_head):
        raise misfit(f"its width is {config.hidden_size}, that of the target's embedding {host.hidden_size}")
    beyond = [tap for tap in config.tap_layers if not -1 <= tap < host.layers]
    if beyond:
        raise misfit(
            f"it reads target layers {beyond}, the target has {host.layers} (0 to {host.layers - 1})"
        )
    if config.target_layers is not None and config.target_layers != host.layers:
        raise misfit(
            f"it was trained for a target of {config.target_layers} layers, this one has {host.layers}"
        )
    if config.vocab_size != host.vocab_size:
        raise misfit(f"its vocabulary has {config.vocab_size} tokens, the target's {host.vocab_size}")
    if config.draft_vocab_size and not config.own_head:
        raise misfit(f"it maps {config.draft_vocab_size} tokens (d2t), but brings no head that scores them")
    rows = config.vocab_size if config.own_embedding else host.embed.weight.shape[0]
    if not 0 <= config.mask_token_id < rows:
        raise misfit(f"its mask_token_id is {config.mask_token_id}, the embedding has {rows} rows")


def misfit(reason: str) -> ValueError:
    return ValueError(
        f"the drafter does not fit the target: {reason}; use the drafter trained for this target"
    )
