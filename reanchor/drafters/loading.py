"""From a folder or a hub id and a target to a drafter that proposes for it; it runs no remote code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.body import Body
from reanchor.drafters.checkpoint import Checkpoint
from reanchor.drafters.fitting import check_fit, host_of
from reanchor.drafters.recognition import recognise

DEMO_DRAFTER = Path(__file__).parents[1] / "assets" / "demo-drafter"
HUB_ID = re.compile(r"[a-zA-Z0-9][\w.-]*/[a-zA-Z0-9][\w.-]*")


def load_drafter(
    path_or_id: str | Path,
    target_model: Any,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> BlockDrafter:
    """The drafter of a local folder or hub id, bound to `target_model`, a transformers causal LM.

    `dtype` and `device` are the target's unless given.
    """
    checkpoint = Checkpoint(locate(path_or_id))
    config = recognise(checkpoint)
    host = host_of(target_model)
    check_fit(config, host)
    with torch.device("meta"):
        body = Body(config)
    own = next(host.head.parameters(), None)
    head_dtype = own.dtype if own is not None and own.is_floating_point() else target_model.dtype
    place = target_model.device if device is None else torch.device(device)
    fill(body, checkpoint.tensors(), head_dtype if dtype is None else dtype, place)
    return BlockDrafter(config, body, host.embed, host.head, head_dtype).eval().requires_grad_(False)


def locate(path_or_id: str | Path) -> Path:
    folder = Path(path_or_id).expanduser()
    if folder.exists() or isinstance(path_or_id, Path) or not HUB_ID.fullmatch(path_or_id):
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
    wanted = module.state_dict()
    problems = [f"missing: {name}" for name in sorted(wanted.keys() - tensors.keys())]
    problems += [f"unexpected: {name}" for name in sorted(tensors.keys() - wanted.keys())]
    problems += [
        f"{name} has shape {list(tensors[name].shape)}, not {list(wanted[name].shape)}"
        for name in sorted(wanted.keys() & tensors.keys())
        if tensors[name].shape != wanted[name].shape
    ]
    if problems:
        raise ValueError("the drafter's tensors do not match its config: " + "; ".join(problems))
    placed = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()}
    module.load_state_dict(placed, assign=True)
    module.to(device)
