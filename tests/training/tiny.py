"""A tiny target, a tiny drafter and a recorded greedy response of the one, all in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.load import load_drafter
from reanchor.target import Target
from reanchor.training.feature_store import FeatureStore
from reanchor.training.responses import Response
from tests.drafters import writer
from tests.tiny import greedy

PROMPT = (3, 14, 15, 9, 2, 6)


def drafter_for(folder: Path, model: Any, carryover: bool = True, **config: Any) -> BlockDrafter:
    written = writer.dflash(**config)
    if carryover:
        width = written.tensors["fc.weight"].shape[1]
        generator = torch.Generator().manual_seed(9)
        written.tensors["carryover_embedding"] = torch.randn(width, generator=generator, dtype=torch.float64)
    return load_drafter(written.save(folder), model, dtype=torch.float64)


def recorded(model: Any, new: int = 40) -> Response:
    return Response(PROMPT, tuple(greedy(model, torch.tensor(PROMPT), new)))


def teacher_of(model: Any, drafter: BlockDrafter) -> FeatureStore:
    return FeatureStore(Target(model, drafter.tap_layers))
