"""Where a model computes: that is not where its weights lie while accelerate keeps them elsewhere."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


def execution_device(model: PreTrainedModel) -> torch.device:
    """The device that token ids go to: accelerate's hooks move weights there, layer by layer, and lie about none."""
    for module in (model.get_input_embeddings(), model):
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device if not isinstance(device, int) else f"cuda:{device}")
    place: torch.device = model.get_input_embeddings().weight.device
    return place


def offloaded(model: PreTrainedModel) -> bool:
    """Are some of its weights somewhere else until their layer is reached?"""
    return any(parameter.device.type == "meta" for parameter in model.parameters())
