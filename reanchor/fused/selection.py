"""Which forward pass serves a model: the fused forward where it is exact, HF's own for everything else."""

from __future__ import annotations

from collections.abc import Callable

from transformers import PreTrainedModel

from reanchor.attention.huggingface import attention_refusal
from reanchor.config import DecodeConfig
from reanchor.fused.architecture import Unsupported, read_architecture
from reanchor.fused.fused_target import FusedTarget, silent
from reanchor.target import Target


def target_for(
    model: PreTrainedModel,
    tap_layers: tuple[int, ...],
    config: DecodeConfig,
    say: Callable[[str], None] = silent,
) -> Target:
    """The target a config asks for; `target.forward_report()` says which it is and why. Raises ValueError where
    the fused forward is asked for by name and the model has no description.
    """
    if config.forward == "transformers":
        return Target(model, tap_layers, config.attention)
    try:
        return FusedTarget(model, tap_layers, config.attention, config.graphs, say)
    except Unsupported as reason:
        if config.forward == "fused":
            raise ValueError(
                f"forward 'fused' cannot run {type(model).__name__}: {reason}; use 'auto' for HF's forward"
            ) from reason
        target = Target(model, tap_layers, config.attention)
        target.fused_refusal = str(reason)
        return target


def refresh_target(target: Target, config: DecodeConfig, say: Callable[[str], None] = silent) -> Target:
    """The same target, or another one where its model was hooked, wrapped or rebuilt since, so that what was done is
    not passed by. Raises ValueError where the fused forward is asked for by name and can serve no more.
    """
    with target.alone:  # else another thread's hooks would look like a user's
        return target if is_unmodified(target) else target_for(target.model, target.tap_layers, config, say)


def is_unmodified(target: Target) -> bool:
    model = target.model
    if target.recurrent is not None and not target.recurrent.current():
        return False
    if not isinstance(target, FusedTarget):
        return (
            attention_refusal(model) == target.attention.refused
            and model.get_decoder().layers is target.layers
        )
    try:
        return read_architecture(model) == target.architecture
    except Unsupported:
        return False
