"""How the drafts of one decode are made and judged: the knob `sampling_mode` resolved for a request and a drafter."""

from __future__ import annotations

from typing import Literal

from reanchor.config import DecodeConfig
from reanchor.drafters.base import Drafter
from reanchor.methods import METHODS
from reanchor.sampling import TokenSelector

DecodeMode = Literal["exact-match", "coupled", "rejection"]


def resolve_mode(config: DecodeConfig, selector: TokenSelector, drafter: Drafter) -> DecodeMode:
    """The mode of a decode; greedy decoding and methods that draft nothing match exactly.

    Raises ValueError where coupling was asked for by name and cannot be: when a processor makes the noise of the
    target's draws unpredictable, or when the drafter cannot draft with it.
    """
    if not selector.sample or not METHODS[config.method or "plain"].drafts:
        return "exact-match"
    if config.sampling_mode == "rejection":
        return "rejection"
    if not config.couples:
        return "exact-match"
    if config.sampling_mode == "coupled":
        if not selector.noise_is_predictable:
            raise ValueError(
                "sampling_mode 'coupled' drafts with the noise of the target's draws, and a processor here reads the "
                "text or keeps scores: use sampling_mode 'exact-match'"
            )
        if not drafter.supports_coupling:
            raise ValueError(
                f"{type(drafter).__name__} cannot couple its drafts: use sampling_mode 'exact-match'"
            )
    return "coupled" if selector.noise_is_predictable else "exact-match"
