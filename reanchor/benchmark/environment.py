"""Environment that figures depend on besides their settings: versions, hardware and the commit of the code."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch
import transformers

from reanchor.hardware import hardware


def environment(device: torch.device) -> dict[str, Any]:
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """The checkout's commit, with + when files differ from it; None for an installed copy."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        head = git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
