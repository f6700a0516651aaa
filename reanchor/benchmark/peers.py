"""Other people's loops on the same target: HF's prompt lookup, and z-lab's own with the same drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from reanchor.benchmark import memory
from reanchor.benchmark.outcome import Outcome
from reanchor.benchmark.runners import HuggingFaceRunner, MethodRunner, PassClock
from reanchor.config import SamplingConfig
from reanchor.target import end_ids

PEERS = ("prompt-lookup", "zlab")
LOOKUP_TOKENS = 10  # as HF's own documentation sets it
ZLAB_INSTALL = "pip install --no-deps dflash"


def peer(name: str, model: PreTrainedModel, drafter_folder: Path | None) -> MethodRunner:
    if name == "prompt-lookup":
        return HuggingFaceRunner(name, model, prompt_lookup_num_tokens=LOOKUP_TOKENS)
    if name == "zlab":
        return ZLabRunner(model, drafter_folder)
    raise ValueError(f"no peer {name!r}: known are {', '.join(PEERS)}")


class ZLabRunner:
    """`dflash_generate` of the package dflash, given the checkpoint's folder."""

    name = "zlab"

    def __init__(self, model: PreTrainedModel, folder: Path | None) -> None:
        try:
            from dflash.model import DFlashDraftModel, dflash_generate
        except ImportError as error:
            raise ValueError(f"the peer zlab is the package dflash: {ZLAB_INSTALL}") from error
        if folder is None:
            raise ValueError("the peer zlab runs the same drafter; give --drafter")
        self.model, self.generate = model, dflash_generate
        drafter: Any = DFlashDraftModel.from_pretrained(folder, dtype=model.dtype)
        self.drafter = drafter.to(model.device).eval()

    def decode(self, ids: list[int], sampling: SamplingConfig) -> Outcome:
        prompt = torch.tensor([ids], device=self.model.device)
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        memory.reset_peak(self.model.device)
        clock = PassClock(self.model)
        with clock.running():
            output = self.generate(
                self.drafter,
                self.model,
                prompt,
                sampling.max_new_tokens,
                list(end_ids(self.model)) or None,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
            )
        return clock.outcome(output[0, len(ids) :].tolist())
