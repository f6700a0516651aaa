"""The paper's ablations as settings of the engine, and what is counted in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import PreTrainedModel

from reanchor.benchmark import paper
from reanchor.benchmark.counters import Agreement, Alignment, CountingDrafter, Earliest, RoundCounter
from reanchor.benchmark.runners import EngineRunner, MethodRunner
from reanchor.config import DecodeConfig
from reanchor.drafters.base import Drafter


@dataclass(frozen=True)
class Variant:
    """Settings under a name, and a counter where acceptance alone does not tell."""

    name: str
    settings: dict[str, Any]
    counter: Callable[[CountingDrafter], RoundCounter] | None = None


@dataclass(frozen=True)
class Share:
    """A figure made of two counts of a variant."""

    name: str
    part: str
    of: str


@dataclass(frozen=True)
class Ablation:
    title: str
    variants: tuple[Variant, ...]
    paper: dict[str, str] = field(default_factory=dict)  # row -> what the paper's text says
    shares: tuple[Share, ...] = ()  # rows; without any, the rows are the variants' acceptance lengths
    against: str | None = None  # the variant from which acceptance lengths are differences


DFLASH = Variant("DFlash", {"method": "dflash"})
ABLATIONS = {
    "components": Ablation(
        "Components (paper's Table 7), acceptance length τ",
        (
            DFLASH,
            Variant("+ shifted blocks", {"attach": "fixed"}),
            Variant("+ token matching", {"attach": "earliest"}),
            Variant("+ verifier path", {"verifier_path": "path"}),
            Variant("+ verifier path, attached", {"verifier_path": "attach"}),
            Variant("token matching, retention longest", {"retention": "longest"}),
        ),
        paper.COMPONENTS,
    ),
    "attach": Ablation(
        "Attachment site (paper's Table 6), acceptance length τ",
        tuple(Variant(rule, {"attach": rule}) for rule in ("fixed", "random", "longest", "earliest")),
        paper.ATTACH,
    ),
    "scope": Ablation(
        "In-block refinement and block extension (paper's Table 4), Δτ over DFlash",
        (
            DFLASH,
            Variant("in-block only", {"scope": "in_block"}),
            Variant("extension only", {"scope": "extension"}),
            Variant("full", {"scope": "full"}),
        ),
        against="DFlash",
    ),
    "alignment": Ablation(
        "Start-token alignment (paper's Table 5), share of matched shifted blocks",
        (Variant("reanchor", {}, Alignment),),
        paper.ALIGNMENT,
        (
            Share("shifted only", "shifted_only", "matched"),
            Share("multiple", "multiple", "matched"),
            Share("matched, of all shifted blocks", "matched", "blocks"),
        ),
    ),
    "earliest": Ablation(
        "Earliest site (paper's Table 8), winning rate over eligible groups",
        (Variant("all sites", {"attach": "all"}, Earliest),),
        shares=(Share("won", "won", "eligible"), Share("eligible, of all groups", "eligible", "groups")),
    ),
    "agreement": Ablation(
        "Drafts after the first rejection that agree with the target (paper's Table 1)",
        (Variant("DFlash", {"method": "dflash"}, Agreement),),
        paper.AGREEMENT,
        (Share("agreement after rejection", "agreeing", "after_rejection"),),
    ),
}


def ablation_methods(
    ablation: Ablation, model: PreTrainedModel, drafter: Drafter, base: DecodeConfig
) -> list[MethodRunner]:
    """Plain decoding, against which all are judged, and every variant of `base`."""
    made: list[MethodRunner] = [EngineRunner("plain", model, None, replace(base, method="plain"))]
    for variant in ablation.variants:
        config = base.having(**{"method": "reanchor", **variant.settings})
        if variant.counter is None:
            made.append(EngineRunner(variant.name, model, drafter, config))
        else:
            observed: Any = CountingDrafter(drafter)
            made.append(EngineRunner(variant.name, model, observed, config, variant.counter(observed)))
    return made
