"""Training-free speculative decoding that re-anchors block drafts on rejected verifier states."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reanchor.config import DecodeConfig as DecodeConfig
    from reanchor.config import SamplingConfig as SamplingConfig

__version__ = "0.1.0"

# public name -> module; loaded at first use, so that the command line answers --help at once
_HOME = {
    "DecodeConfig": "config",
    "SamplingConfig": "config",
}
__all__ = ["DecodeConfig", "SamplingConfig"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
