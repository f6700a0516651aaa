"""The knobs of decoding, each named, explained and checked once; command-line options are made from these
fields.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_type_hints

Method = Literal["auto", "reanchor", "dflash", "ddtree", "plain"]
Attach = Literal["earliest", "fixed", "longest", "random", "all"]
Retention = Literal["first", "longest"]
Scope = Literal["full", "in_block", "extension"]
VerifierPath = Literal["off", "path", "attach"]
SamplingMode = Literal["auto", "coupled", "exact-match", "rejection"]
AttentionChoice = Literal["auto", "triton", "flash", "sdpa", "reference"]
ForwardChoice = Literal["auto", "transformers", "fused"]
KINDS: dict[type, tuple[str, type]] = {
    bool: ("true or false", bool),
    int: ("a whole number", numbers.Integral),
    float: ("a number", numbers.Real),
}
COLDEST = 1e-6  # temperature above 0
MOST_NODES = 4096  # what each node sees of the others is a square
DEFAULT_NODES = {"ddtree": 64, "auto": 64}  # trees of candidates have no end of their own

RULES = ("attach", "retention", "scope", "verifier_path", "attach_seed")  # of the paper's method
UNDRAWN = {  # why a method's tokens can't be judged by rejection
    "reanchor": "merges blocks of several distributions",
    "auto": "names its candidates without a draw, where rejection would accept what the target's own draw does",
}


def knob(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


def check_fields(config: object) -> None:
    """Raise ValueError for a field whose value is not of its declared type, or none of its choices."""
    for name, hint in get_type_hints(type(config)).items():
        allowed, value = get_args(hint) or (hint,), getattr(config, name)
        words = allowed if isinstance(allowed[0], str) else get_args(allowed[0])
        if words:
            if value not in words and not (value is None and type(None) in allowed):
                raise ValueError(f"{name} must be one of {', '.join(words)}, got {value!r}")
        elif not any(fits(value, each) for each in allowed):
            wanted = " or ".join("none" if each is type(None) else KINDS[each][0] for each in allowed)
            raise ValueError(f"{name} must be {wanted}, got {value!r}")


def fits(value: object, kind: type) -> bool:
    """Is it of this kind, as Python's numbers go? True is no number."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, KINDS[kind][1] if kind in KINDS else kind)


@dataclass(frozen=True)
class DecodeConfig:
    """How a round proposes. Nothing here can change the output, only how many tokens a round commits."""

    method: Method | None = knob(
        None,
        "What a round verifies: the best tree of every source's candidates, the baseline and shifted blocks, the "
        "baseline alone, the likeliest tree of its candidates, or nothing.  [default: auto on a CPU, where it was "
        "measured, unless a rule of reanchor's is given; reanchor elsewhere]",
    )
    attach: Attach = knob("earliest", "Where a shifted block joins the baseline (method, Table 6).")
    retention: Retention = knob("first", "Which rejected path leaves its states for the next round.")
    scope: Scope = knob("full", "Depths at which tokens of shifted blocks are kept (Table 4).")
    verifier_path: VerifierPath = knob(
        "off", "Use the target's own tokens along the rejected path as a branch."
    )
    carryover: bool | None = knob(
        None,
        "The baseline block reads the rejected states of the last round.  [default: when the drafter was trained to]",
    )
    carryover_shifted: bool = knob(False, "Shifted blocks, too, read the rejected states beyond their own.")
    sampling_mode: SamplingMode = knob(
        "auto",
        "How drafts are made and judged at a temperature: those that the numbers of the target's draw favour, or the "
        "likeliest, against the target's own draw; or by the ratio of the target's and the drafter's distributions "
        "(methods dflash and ddtree). auto: coupled with method auto, else exact-match.",
    )
    max_shifts: int | None = knob(None, "Most shifted blocks a round drafts.  [default: all retained states]")
    max_nodes: int | None = knob(
        None,
        f"Most tree nodes a round verifies, anchor included; up to {MOST_NODES}.  [default: no limit; ddtree and "
        "auto 64]",
    )
    attention: AttentionChoice = knob("auto", "Attention over trees and blocks; auto: the first that can.")
    forward: ForwardChoice = knob(
        "auto", "Forward pass of the target: transformers' own, or the fused one where a model allows it."
    )
    graphs: bool = knob(
        False,
        "Rounds of fixed shapes, captured as CUDA graphs, and run as they are elsewhere; off until asked for, as "
        "capture has been tested only by running the same functions eagerly.",
    )
    attach_seed: int = knob(0, "Seed of --attach random.")

    def __post_init__(self) -> None:
        check_fields(self)
        ruled = self.rules_given()
        if self.method == "auto" and ruled:
            raise ValueError(
                f"{ruled[0]} {getattr(self, ruled[0])!r} is a rule of method 'reanchor', and method 'auto' prices "
                "every place: use method reanchor, or leave it out"
            )
        if self.sampling_mode == "rejection" and self.method is None:
            raise ValueError(
                "sampling_mode 'rejection' judges tokens drawn from one block: use method dflash or ddtree"
            )
        if self.sampling_mode == "rejection" and self.method in UNDRAWN:
            raise ValueError(
                f"sampling_mode 'rejection' judges tokens drawn from one block, and method {self.method!r} "
                f"{UNDRAWN[self.method]}: use method dflash or ddtree, or sampling_mode 'exact-match'"
            )
        if self.max_shifts is not None and self.max_shifts < 0:
            raise ValueError(f"max_shifts must not be negative, got {self.max_shifts}")
        if self.max_nodes is not None and not 1 <= self.max_nodes <= MOST_NODES:
            raise ValueError(
                f"max_nodes must be at least 1 (the anchor) and at most {MOST_NODES}, got {self.max_nodes}"
            )

    def rules_given(self) -> list[str]:
        """Rules of method reanchor that are not as usual."""
        usual = {each.name: each.default for each in fields(self)}
        return [name for name in RULES if getattr(self, name) != usual[name]]

    def on(self, device: str) -> DecodeConfig:
        """With the method that is usual on a type of device, where none is named."""
        if self.method is not None:
            return self
        return replace(self, method="auto" if device == "cpu" and not self.rules_given() else "reanchor")

    @property
    def couples(self) -> bool:
        """Are drafts at a temperature to win the target's own race?"""
        return self.sampling_mode == "coupled" or (self.sampling_mode == self.method == "auto")

    @property
    def node_budget(self) -> int | None:
        """max_nodes, or the method's own default."""
        return self.max_nodes if self.max_nodes is not None else DEFAULT_NODES.get(self.method or "")


@dataclass(frozen=True)
class SamplingConfig:
    """What is generated: length, stops and the target distribution's processing, in HF generate's order."""

    max_new_tokens: int = knob(256, "Stop after this many new tokens.")
    temperature: float = knob(0.0, "0 decodes greedily.")
    top_p: float = knob(1.0, "Keep the smallest set of tokens with this much probability.")
    top_k: int = knob(0, "Keep this many most likely tokens; 0 keeps all.")
    seed: int | None = knob(None, "Seed of sampling.  [default: none]")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be 0 (greedy) or positive, got {self.temperature}")
        if self.temperature == float("inf"):
            raise ValueError(
                "temperature must be finite, got inf: every token would be as likely as any other"
            )
        if 0 < self.temperature < COLDEST:
            raise ValueError(
                f"temperature {self.temperature} takes scores out of float32's range; say 0 for greedy, or at least "
                f"{COLDEST}"
            )
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise ValueError(f"seed must fit in 64 bits, got {self.seed}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or positive, got {self.top_k}")
