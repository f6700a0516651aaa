"""A drafter checkpoint on disk: its config and its tensors, as written; it knows no dialect."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from reanchor.files import check_regular, files_of_index, read_json
from reanchor.foreign import theirs

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
        with theirs(f"{str(self.folder)!r} cannot be read: copy it again"), ExitStack() as stack:
            for file in self.files:
                reader = stack.enter_context(safe_open(file, framework="pt"))
                found.update({name: reader.get_tensor(name) for name in reader.keys()})  # noqa: SIM118
        for name, tensor in found.items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise ValueError(f"tensor {name!r} of {str(self.folder)!r} holds NaN or infinite values")
        return found

    def _json(self, name: str) -> dict[str, Any]:
        try:
            return read_json(self.folder / name)
        except FileNotFoundError:
            raise ValueError(
                f"{str(self.folder)!r} has no {name}: not a checkpoint, or half-written; copy it again"
            ) from None

    def _files(self) -> list[Path]:
        if (self.folder / WHOLE).exists():
            names = [WHOLE]
        elif (self.folder / INDEX).exists():
            names = files_of_index(self.folder / INDEX, self._json(INDEX))
        else:
            names = sorted(path.name for path in self.folder.glob("*.safetensors"))
        missing = [name for name in names if not (self.folder / name).exists()]
        if missing:
            raise ValueError(
                f"{str(self.folder)!r} is half-written: {', '.join(missing)} not there; copy it again"
            )
        if not names:
            raise ValueError(
                f"{str(self.folder)!r} has no *.safetensors file: not a checkpoint, or half-written"
            )
        files = [self.folder / name for name in names]
        for file in files:
            check_regular(file)
        return files

    def _headers(self, file: Path) -> None:
        with (
            theirs(f"{str(file)!r} is damaged or half-written: copy it again"),
            safe_open(file, framework="pt") as reader,
        ):
            for name in reader.keys():  # noqa: SIM118
                view = reader.get_slice(name)
                self.shapes[name] = tuple(view.get_shape())
                self.dtypes[name] = view.get_dtype()


def is_hub_id(name: str) -> bool:
    """The hub's own rule for names of repositories."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
