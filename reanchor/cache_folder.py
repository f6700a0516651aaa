"""The user's cache folder: where what was made once is kept for later processes."""

from __future__ import annotations

import os
from pathlib import Path

REMEDY = "point XDG_CACHE_HOME at a folder that can be written"


def cache_folder() -> Path:
    """Ours, whether it is there or not. ValueError where background says whose cache it would be."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "reanchor"
    except RuntimeError as error:
        raise ValueError(f"there is no home folder to keep a cache in: {REMEDY}") from error
