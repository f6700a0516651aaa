"""Cache folder: where what was made once is kept for later processes, beside the hub's downloads."""

from __future__ import annotations

from pathlib import Path

REMEDY = "point HF_HOME at a folder that can be written"


def cache_folder() -> Path:
    """The hub's folder for assets of a library, ours of them, whether it is there or not."""
    from huggingface_hub import constants

    return Path(constants.HF_ASSETS_CACHE) / "reanchor"
