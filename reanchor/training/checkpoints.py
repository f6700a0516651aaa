"""Drafter folders written and found again: whole or not at all, the one before kept until the next is whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from reanchor.drafters.loading import checkpoint_name

KEPT = 2
STATE = "training.pt"


def write_drafter(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    """z-lab's format: config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    written = dict(config) | {"dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    save_file(
        {
            name: tensor.detach()
            .to("cpu", dtype if tensor.is_floating_point() else tensor.dtype)
            .contiguous()
            for name, tensor in tensors.items()
        },
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


def tensors_of(drafter: nn.Module) -> dict[str, Tensor]:
    """Under the names of a checkpoint."""
    return {checkpoint_name(name): tensor for name, tensor in drafter.state_dict().items()}


def save(
    root: Path, step: int, config: Mapping[str, Any], drafter: nn.Module, state: Mapping[str, Any]
) -> Path:
    """A checkpoint of one step in full precision, with what the optimiser knows."""
    folder, part = root / f"step-{step:07}", root / "unfinished"
    shutil.rmtree(part, ignore_errors=True)
    try:
        write_drafter(part, config, tensors_of(drafter), torch.float32)
        torch.save(dict(state), part / STATE)
    except (OSError, RuntimeError) as error:  # safetensors and torch report a full disk as either
        shutil.rmtree(part, ignore_errors=True)
        kept = latest(root)
        raise ValueError(
            f"cannot write the checkpoint {str(folder)!r} ({error}): free some space and resume from "
            f"{'the start' if kept is None else repr(str(kept))}"
        ) from error
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    for old in found(root)[:-KEPT]:
        shutil.rmtree(old)
    return folder


def found(root: Path) -> list[Path]:
    return sorted(root.glob("step-*"))


def latest(root: Path) -> Path | None:
    folders = found(root)
    return folders[-1] if folders else None


def load_state(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return state
