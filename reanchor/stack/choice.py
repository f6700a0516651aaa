"""Which forward pass serves a model: the lean stack where it is exact, HF's own for everything else."""

from __future__ import annotations

from collections.abc import Callable

from transformers import PreTrainedModel

from reanchor.attention.huggingface import refusal
from reanchor.config import DecodeConfig
from reanchor.stack.description import Undescribed, describe
from reanchor.stack.target import LeanTarget, silent
from reanchor.target import Target


def target_for(
    model: PreTrainedModel,
    tap_layers: tuple[int, ...],
    config: DecodeConfig,
    say: Callable[[str], None] = silent,
) -> Target:
    """The target a config asks for; `target.stack_report()` says which it is and why. Raises ValueError where
    the lean stack is asked for by name and the model has no description.
    """
    if config.stack == "hf":
        return Target(model, tap_layers, config.attention)
    try:
        return LeanTarget(model, tap_layers, config.attention, config.graphs, say)
    except Undescribed as reason:
        if config.stack == "lean":
            raise ValueError(
                f"stack 'lean' cannot run {type(model).__name__}: {reason}; use 'auto' for HF's forward"
            ) from reason
        target = Target(model, tap_layers, config.attention)
        target.not_lean = str(reason)
        return target


def target_still(target: Target, config: DecodeConfig, say: Callable[[str], None] = silent) -> Target:
    """The same target, or another one where its model was hooked, wrapped or rebuilt since, so that what was done is
    not passed by. Raises ValueError where the lean stack is asked for by name and can serve no more.
    """
    with target.alone:  # else another thread's hooks would look like a user's
        return target if unchanged(target) else target_for(target.model, target.tap_layers, config, say)


def unchanged(target: Target) -> bool:
    model = target.model
    if not isinstance(target, LeanTarget):
        return refusal(model) == target.attention.refused and model.get_decoder().layers is target.layers
    try:
        return describe(model) == target.stack
    except Undescribed:
        return False
