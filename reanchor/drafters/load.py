"""Load a drafter for a target from a folder or a hub id; it runs no remote code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.checkpoint import Checkpoint, is_hub_id
from reanchor.drafters.drafter_config import DrafterConfig
from reanchor.drafters.fitting import check_fit, target_parts
from reanchor.drafters.names import renamed
from reanchor.drafters.recognition import recognise
from reanchor.drafters.refusals import Shapes
from reanchor.files import named_path
from reanchor.placement import execution_device

ASSETS = Path(__file__).parents[1] / "assets"
SHIPPED = {"demo": ASSETS / "demo-drafter"}  # drafters of the embedded target
ROOMS = ("body.", "domino.")  # parts of the drafter whose tensors stand at the top of a checkpoint


def load_drafter(
    path_or_id: str | Path,
    target_model: Any,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    confidence_threshold: float = 0.0,
) -> BlockDrafter:
    """The drafter of a local folder, a hub id or a shipped name, bound to `target_model`, a transformers causal LM.

    Every dialect of the DFlash family is recognised. `dtype` and `device` are the target's unless given.
    `confidence_threshold` cuts a block's proposals at the first the drafter's own confidence head gives less;
    0 keeps all.
    """
    checkpoint = Checkpoint(locate(path_or_id))
    config = recognise(checkpoint).config
    host = target_parts(target_model)
    check_fit(config, host)
    check_threshold(confidence_threshold, config)
    drafter = build(config)
    place = execution_device(target_model) if device is None else torch.device(device)
    fill(drafter, renamed(checkpoint.tensors()), target_model.dtype if dtype is None else dtype, place)
    check_mapping(drafter)
    drafter.confidence_threshold = confidence_threshold
    return drafter.borrow(host.embed, host.head).eval().requires_grad_(False).packed()


def build(config: DrafterConfig) -> BlockDrafter:
    """The drafter without its tensors."""
    with torch.device("meta"):
        return BlockDrafter(config)


def locate(path_or_id: str | Path) -> Path:
    """The folder of a checkpoint: shipped, local, or fetched from the hub."""
    if path_or_id in SHIPPED:
        return SHIPPED[str(path_or_id)]
    folder = named_path(path_or_id, "the drafter")
    if folder.exists() or isinstance(path_or_id, Path) or "/" not in path_or_id or not is_hub_id(path_or_id):
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path_or_id, allow_patterns=["*.json", "*.safetensors"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"{path_or_id!r} is neither a folder nor a drafter the hub gives us ({error}): "
            "check the name, the network and your access"
        ) from error


def fill(module: nn.Module, tensors: dict[str, Tensor], dtype: torch.dtype, device: torch.device) -> None:
    """Put the checkpoint's tensors in place; every tensor has its place and every place its tensor."""
    check_shapes(module, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    wanted = {checkpoint_name(name): (name, place) for name, place in module.state_dict().items()}
    placed = {}
    for name, tensor in tensors.items():
        ours, place = wanted[name]
        placed[ours] = tensor.to(device=device, dtype=dtype if place.is_floating_point() else place.dtype)
    module.load_state_dict(placed, assign=True)
    module.to(device)


def check_shapes(module: nn.Module, found: Shapes) -> None:
    wanted = {checkpoint_name(name): tuple(place.shape) for name, place in module.state_dict().items()}
    problems = [f"missing: {name}" for name in sorted(wanted.keys() - found.keys())]
    problems += [f"unexpected: {name}" for name in sorted(found.keys() - wanted.keys())]
    problems += [
        f"{name} has shape {list(found[name])}, not {list(wanted[name])}"
        for name in sorted(wanted.keys() & found.keys())
        if found[name] != wanted[name]
    ]
    if problems:
        raise ValueError("the drafter's tensors do not match its config: " + "; ".join(problems))


def checkpoint_name(name: str) -> str:
    for room in ROOMS:
        name = name.removeprefix(room)
    return name


def check_mapping(drafter: BlockDrafter) -> None:
    size = drafter.config.draft_vocab_size
    if not size:
        return
    ids = torch.arange(size, device=drafter.d2t.device) + drafter.d2t
    if int(ids.min()) < 0 or int(ids.max()) >= drafter.config.vocab_size:
        raise ValueError(
            f"d2t maps draft tokens to {int(ids.min())} .. {int(ids.max())}, outside the target's "
            f"{drafter.config.vocab_size} tokens: it must hold target id less draft id"
        )


def check_threshold(threshold: float, config: DrafterConfig) -> None:
    if not 0 <= threshold <= 1:
        raise ValueError(f"confidence_threshold must lie in [0, 1], got {threshold}")
    if threshold and config.confidence is None:
        raise ValueError(
            f"confidence_threshold is {threshold}, but this drafter has no confidence head: leave it at 0"
        )
