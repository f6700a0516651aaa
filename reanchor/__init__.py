"""Training-free speculative decoding that re-anchors block drafts on rejected verifier states."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reanchor.config import DecodeConfig as DecodeConfig
    from reanchor.config import SamplingConfig as SamplingConfig
    from reanchor.core import Round as Round
    from reanchor.decoder import SpeculativeDecoder as SpeculativeDecoder
    from reanchor.drafters.base import Drafter as Drafter
    from reanchor.generator import ReAnchorGenerator as ReAnchorGenerator
    from reanchor.generator import ReAnchorOutput as ReAnchorOutput
    from reanchor.stats import Stats as Stats

__version__ = "0.1.0"

# public name -> module; loaded at first use, so that the command line answers --help at once
_HOME = {
    "DecodeConfig": "config",
    "Drafter": "drafters.base",
    "ReAnchorGenerator": "generator",
    "ReAnchorOutput": "generator",
    "Round": "core",
    "SamplingConfig": "config",
    "SpeculativeDecoder": "decoder",
    "Stats": "stats",
    "load_drafter": "drafters.load",
    "speculative": "generator",
}
__all__ = [
    "DecodeConfig",
    "Drafter",
    "ReAnchorGenerator",
    "ReAnchorOutput",
    "Round",
    "SamplingConfig",
    "SpeculativeDecoder",
    "Stats",
    "load_drafter",
    "speculative",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
