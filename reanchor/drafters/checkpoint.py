"""A drafter checkpoint on disk: its config and its tensors, as written; it knows no dialect."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


class Checkpoint:
    """Reads names, shapes and types at once, and tensors when asked."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ValueError(f"no drafter checkpoint at {str(folder)!r}: the folder does not exist")
        self.folder = folder
        self.config: dict[str, Any] = self._json(CONFIG)
        self.files = self._files()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        for file in self.files:
            self._headers(file)

    def tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        with ExitStack() as stack:
            for file in self.files:
                reader = stack.enter_context(safe_open(file, framework="pt"))
                found.update({name: reader.get_tensor(name) for name in reader.keys()})  # noqa: SIM118
        for name, tensor in found.items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise ValueError(f"tensor {name!r} of {str(self.folder)!r} holds NaN or infinite values")
        return found

    def _json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(
                f"{str(self.folder)!r} has no {name}: not a checkpoint, or half-written; copy it again"
            ) from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{str(path)!r} is not JSON ({error}): copy the checkpoint again") from None
        if not isinstance(value, dict):
            raise ValueError(f"{str(path)!r} holds a {type(value).__name__}, not the keys of a config")
        return value

    def _files(self) -> list[Path]:
        if (self.folder / WHOLE).exists():
            names = [WHOLE]
        elif (self.folder / INDEX).exists():
            names = sorted(set(self._json(INDEX).get("weight_map", {}).values()))
        else:
            names = sorted(path.name for path in self.folder.glob("*.safetensors"))
        missing = [name for name in names if not (self.folder / name).is_file()]
        if missing:
            raise ValueError(
                f"{str(self.folder)!r} is half-written: {', '.join(missing)} not there; copy it again"
            )
        if not names:
            raise ValueError(
                f"{str(self.folder)!r} has no *.safetensors file: not a checkpoint, or half-written"
            )
        return [self.folder / name for name in names]

    def _headers(self, file: Path) -> None:
        try:
            with safe_open(file, framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118
                    view = reader.get_slice(name)
                    self.shapes[name] = tuple(view.get_shape())
                    self.dtypes[name] = view.get_dtype()
        except SafetensorError as error:
            raise ValueError(f"{str(file)!r} is damaged or half-written ({error}): copy it again") from None


def is_hub_id(name: str) -> bool:
    """The hub's own rule for names of repositories."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
