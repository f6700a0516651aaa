"""A target, a drafter and the knobs, held together: the engine without HF's generation interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reanchor.calibration import calibrate, timed_stages
from reanchor.config import DecodeConfig, SamplingConfig
from reanchor.core import Round
from reanchor.decode_state import RoundEngine, Stage, untimed
from reanchor.drafters.base import Drafter, NoDrafter
from reanchor.fused.fused_target import silent
from reanchor.fused.selection import refresh_target, target_for
from reanchor.graphs.graphed_rounds import GraphedRounds
from reanchor.hardware import synchronizer
from reanchor.loop import decode
from reanchor.methods import METHODS
from reanchor.placement import execution_device
from reanchor.proposal.latency import LatencyModel
from reanchor.proposal.sources import Source
from reanchor.sampling import TokenSelector, token_selector
from reanchor.stats import Stopwatch
from reanchor.target import Target, model_lock


def uses_carryover(drafter: Drafter, config: DecodeConfig) -> bool:
    """Will the baseline block read rejected states? Raises ValueError when it never learned to."""
    able = drafter.carryover
    if config.carryover and not able:
        raise ValueError(
            "carryover is on, but the drafter was not trained to read rejected states: continue its training with "
            "`reanchor train carryover`, or turn it off"
        )
    return able if config.carryover is None else config.carryover


def resolve_method(config: DecodeConfig, drafter: Drafter | None, device: str) -> DecodeConfig:
    """With the method that is usual, where none is named: auto without a drafter, else by device.

    Raises ValueError for a method that needs a drafter and has none.
    """
    if config.method is None and drafter is None and not config.rules.changed():
        return replace(config, method="auto")
    config = config.on(device)
    if drafter is None and METHODS[config.method or "plain"].needs_drafter:
        raise ValueError(
            f"method {config.method!r} needs a drafter, and there is none: give one, or use method auto or plain"
        )
    return config


def run_exclusively(
    rounds: Iterator[Round], turn: AbstractContextManager[object], selector: TokenSelector
) -> Iterator[Round]:
    """The same rounds, each made in its turn: threads share regions, and a capture is alone on its device.

    However it ends, what was drawn for tokens that did not come is given back.
    """
    try:
        while True:
            with turn:
                round_ = next(rounds, None)
            if round_ is None:
                return
            yield round_
    finally:
        selector.noise.restore_unused()


class SpeculativeDecoder:
    """Decodes with a drafter; the output is the target's own.

    model: an HF causal LM. drafter: None means method auto with the sources that need no draft, unless the config says
    plain. sources: further sources of method auto. Any state of a decode lives in that decode, so one
    decoder, or several on one model, may be used again and again, also after an exception. `say` hears of what takes
    long.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        drafter: Drafter | None = None,
        config: DecodeConfig | None = None,
        say: Callable[[str], None] = silent,
        sources: Sequence[Source] = (),
    ) -> None:
        if not isinstance(drafter, Drafter | None):
            raise ValueError(
                f"the drafter is a {type(drafter).__name__}, not a reanchor.Drafter: load one with load_drafter, or "
                "derive its class from reanchor.Drafter"
            )
        config = resolve_method(config or DecodeConfig(), drafter, execution_device(model).type)
        if drafter is None or not METHODS[config.method or "plain"].drafts:
            drafter = NoDrafter()
        if sources and config.method != "auto":
            raise ValueError(
                f"sources are method auto's, and the method is {config.method!r}: use method auto"
            )
        self.sources = tuple(sources)
        self.config, self.drafter = replace(config, carryover=uses_carryover(drafter, config)), drafter
        self._costs: dict[bool, tuple[Target, LatencyModel]] = {}  # of greedy decoding and of sampling
        self.say = say
        with model_lock(model):
            self.take(target_for(model, tuple(drafter.tap_layers), config, say))

    def take(self, target: Target) -> None:
        if getattr(self, "target", None) is not target:
            self.whole = GraphedRounds(target, self.drafter, self.config) if self.config.graphs else None
        self.target = target
        self.drafter.use_attention(target.attention)  # one choice, and one report of what came of it

    def decode(
        self,
        prompt: Tensor | list[int],
        sampling: SamplingConfig | None = None,
        *,
        end_ids: tuple[int, ...] = (),
        selector: TokenSelector | None = None,
        stage: Stage = untimed,
    ) -> Iterator[Round]:
        """Rounds in order; the first is the prefill's. Nothing of it is a batch: prompt is [P].

        `selector` replaces `sampling` and `end_ids` when the caller has its own. Raises ValueError for an empty
        prompt, one with no room left in the target's context, and ids outside the vocabulary.
        """
        with self.target.alone:
            self.take(refresh_target(self.target, self.config, self.say))
            ids = self.check_prompt(torch.as_tensor(prompt, dtype=torch.long, device=self.target.device))
            if selector is None:
                sampling = sampling or SamplingConfig()
                room = (self.target.context_length or 1 << 62) - len(ids)
                if sampling.max_new_tokens > room:
                    sampling = replace(sampling, max_new_tokens=room)
                selector = token_selector(sampling, ids, end_ids)
            costs = self.costs(selector.sample)
            if costs is not None:
                stage = timed_stages(stage, costs, Stopwatch())
            engine = RoundEngine(self.target, self.drafter, self.config, stage)
            rounds = decode(engine, ids, selector, costs, self.whole, self.sources)
            return run_exclusively(
                rounds, nullcontext() if self.whole is None else self.target.alone, selector
            )

    def forward_report(self) -> dict[str, Any]:
        """What a summary says: whose forward pass it is and why; with `graphs`, which rounds were whole ones."""
        report = self.target.forward_report()
        if self.whole is not None:
            report["graphs"] = {**report.get("graphs", {}), **self.whole.report()}
        return report

    def costs(self, sample: bool = False) -> LatencyModel | None:
        """What method auto weighs its rounds by, measured at first use; None where the size of rounds is given."""
        if self.config.method != "auto" or self.config.max_nodes is not None:
            return None
        target, costs = self._costs.get(sample, (None, None))
        if costs is None or target is not self.target:
            costs = calibrate(self.target, self.drafter, self.config.node_budget or 1, self.say)
            self._costs[sample] = self.target, costs
        return costs.fresh()

    def check_prompt(self, prompt: Tensor) -> Tensor:
        """The prompt [P] unchanged, or ValueError with the reason."""
        if prompt.dim() != 1 or not len(prompt):
            raise ValueError(f"the prompt must be at least one token [P], got shape {tuple(prompt.shape)}")
        if prompt.is_floating_point() or prompt.dtype is torch.bool:
            raise ValueError(f"the prompt must be token ids, whole numbers, got {prompt.dtype}")
        limit = self.target.context_length
        if limit is not None and len(prompt) >= limit:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens and the target's context {limit}; shorten it to leave room "
                "for at least one new token"
            )
        vocabulary = self.target.vocabulary
        if int(prompt.min()) < 0 or int(prompt.max()) >= vocabulary:
            raise ValueError(
                f"prompt ids run from {int(prompt.min())} to {int(prompt.max())}, outside the target's vocabulary of "
                f"{vocabulary}; tokenize with the target's own tokenizer"
            )
        return prompt

    def synchronize(self) -> Any:
        """What makes the target's device finish its work; None where there is nothing to wait for."""
        return synchronizer(self.target.device)
