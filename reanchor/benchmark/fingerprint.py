"""Short digests of what a run reads besides its options: the prompts' texts, and a checkpoint's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reanchor.datasets import PromptSet

# what a decode depends on; a folder may hold logs and optimizer states beside it
FILES = (
    "*.safetensors",
    "*.bin",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "*.jinja",
    "vocab.json",
)
SAMPLES, SAMPLE = 64, 1 << 16  # of a large file: pieces spread over it evenly, and their bytes


def of_prompts(prompts: PromptSet) -> str:
    """Changes with every text of a turn or reference."""
    return short(hashlib.sha256(json.dumps([vars(each) for each in prompts.prompts]).encode()))


def of_checkpoint(folder: Path) -> str:
    """Changes with a file's name and size and, as good as certainly, with any training of its tensors."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in FILES for path in folder.glob(pattern) if path.is_file()}):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as stream:
            for start in starts(size):
                stream.seek(start)
                digest.update(stream.read(SAMPLE))
    return short(digest)


def starts(size: int) -> Iterable[int]:
    """Of the pieces that are read: all of a small file, its first and last byte among those of a large one."""
    if size <= SAMPLES * SAMPLE:
        return range(0, size, SAMPLE)
    return (at * (size - SAMPLE) // (SAMPLES - 1) for at in range(SAMPLES))


def of_target(model: Any) -> str | None:
    """Of the folder it was loaded from, or the commit of the hub's snapshot."""
    folder = Path(model.name_or_path)
    return of_checkpoint(folder) if folder.is_dir() else getattr(model.config, "_commit_hash", None)


def short(digest: Any) -> str:
    return digest.hexdigest()[:16]
