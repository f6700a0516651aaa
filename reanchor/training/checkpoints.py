"""Drafter folders written and found again: whole or not at all, the one before kept until the next is whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from reanchor.drafters.load import checkpoint_name

KEPT = 2
STATE = "training.pt"


def write_drafter(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    """z-lab's format: config.json and model.safetensors, each there as a whole or as it was before."""
    folder.mkdir(parents=True, exist_ok=True)
    written = dict(config) | {"dtype": str(dtype).removeprefix("torch.")}
    found = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in tensors.items()
    }
    parts = {name: folder / f"{name}.part" for name in ("model.safetensors", "config.json")}
    try:
        save_file(found, parts["model.safetensors"], metadata={"format": "pt"})
        parts["config.json"].write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        for name, part in parts.items():
            part.replace(folder / name)
    except (OSError, SafetensorError) as error:
        for part in parts.values():
            part.unlink(missing_ok=True)
        raise ValueError(f"cannot write the drafter {str(folder)!r} ({error}): free some space") from error


def tensors_of(drafter: nn.Module) -> dict[str, Tensor]:
    """Under the names of a checkpoint."""
    return {checkpoint_name(name): tensor for name, tensor in drafter.state_dict().items()}


def save(
    root: Path, step: int, config: Mapping[str, Any], drafter: nn.Module, state: Mapping[str, Any]
) -> Path:
    """A checkpoint of one step in full precision, with what the optimiser knows."""
    folder, part = root / f"step-{step:07}", root / "unfinished"
    if folder.exists():  # whole, as all that bear a step's name are
        return folder
    shutil.rmtree(part, ignore_errors=True)
    try:
        write_drafter(part, config, tensors_of(drafter), torch.float32)
        torch.save(dict(state), part / STATE)
    except (OSError, RuntimeError, ValueError) as error:  # torch reports a full disk as either of two
        shutil.rmtree(part, ignore_errors=True)
        kept = latest(root)
        begin = "the start" if kept is None else repr(str(kept))
        raise ValueError(
            f"cannot write the checkpoint {str(folder)!r} ({error.__cause__ or error}): free some space and resume "
            f"from {begin}"
        ) from error
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
    """What `save` kept of the optimiser; ValueError when it cannot be read."""
    try:
        state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, UnpicklingError, EOFError) as error:
        raise ValueError(
            f"the checkpoint {str(folder)!r} is damaged ({error}): remove it, and the one before is gone on from"
        ) from error
    return state
