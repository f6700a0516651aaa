"""The knobs of decoding, each named, explained and checked once; command-line options are made from these
fields.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from reanchor.methods import METHODS, Method

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
# rules that method reanchor alone follows; method auto, too, follows the others
OWN_RULES = ("attach", "retention", "scope", "verifier_path", "attach_seed")
COLDEST = 1e-6  # temperature above 0
MOST_NODES = 4096  # what each node sees of the others is a square


def knob(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


def check_fields(config: object) -> None:
    """Raise ValueError for a field whose value is not of its declared type, or none of its choices."""
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if not any(fits(value, kind) for kind in kinds):
            raise ValueError(
                f"{name} must be {' or '.join(described(kind) for kind in kinds)}, got {value!r}"
            )


def fits(value: object, kind: Any) -> bool:
    """Is it of this kind, as Python's numbers go? True is no number."""
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_origin(kind) is tuple:
        element, *_ = get_args(kind)
        return isinstance(value, tuple) and all(fits(each, element) for each in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, KINDS[kind][1] if kind in KINDS else kind)


def parse_value(config: type, name: str, text: str) -> Any:
    """The value of a field from its text, `none` for None. Raises ValueError where it is of no allowed type."""
    hint = get_type_hints(config)[name]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if text == "none" and type(None) in kinds:
        return None
    if bool in kinds:
        return {"true": True, "false": False}.get(text.lower(), text)
    if int in kinds:
        try:
            return int(text)
        except ValueError as error:
            raise ValueError(f"{name}: {text!r} is no whole number") from error
    return text


def parse_rules(texts: Iterable[str]) -> ReAnchorRules:
    """Rules from texts like `attach=fixed`. Raises ValueError for a rule or a value that is not there."""
    known, given = [each.name for each in fields(ReAnchorRules)], {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in known or not equals:
            raise ValueError(f"--rule takes NAME=VALUE with a rule of {', '.join(known)}, got {text!r}")
        given[name] = parse_value(ReAnchorRules, name, value.strip())
    return ReAnchorRules(**given)


def described(kind: Any) -> str:
    """A field's type in the words of an error."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is tuple:
        return f"a tuple, each {described(get_args(kind)[0])}"
    return "none" if kind is type(None) else KINDS[kind][0] if kind in KINDS else kind.__name__


@dataclass(frozen=True)
class ReAnchorRules:
    """The rules of method reanchor, as the paper's ablations vary them; given as `--rule attach=fixed`."""

    attach: Attach = knob("earliest", "Where a shifted block joins the baseline (paper, Table 6).")
    retention: Retention = knob("first", "Which rejected path leaves its states for the next round.")
    scope: Scope = knob("full", "Depths at which tokens of shifted blocks are kept (paper, Table 4).")
    verifier_path: VerifierPath = knob(
        "off", "Use the target's own tokens along the rejected path as a branch (paper, Table 7)."
    )
    attach_seed: int = knob(0, "Seed of attach=random.")
    carryover_shifted: bool = knob(False, "Shifted blocks, too, read the rejected states beyond their own.")
    max_shifts: int | None = knob(None, "Most shifted blocks a round drafts; none: all retained states.")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_shifts is not None and self.max_shifts < 0:
            raise ValueError(f"max_shifts must not be negative, got {self.max_shifts}")

    def changed(self) -> list[str]:
        """Those of OWN_RULES that are not as usual."""
        return [name for name in OWN_RULES if getattr(self, name) != getattr(type(self), name)]


@dataclass(frozen=True)
class DecodeConfig:
    """How a round proposes. Nothing here changes the target's distribution; greedy in float32, not a token.

    Sampled text of a seed may differ between sampling modes, and half precision can swap two nearly equal tokens.
    Raises ValueError for a value that is not of its type, or that a method cannot take.
    """

    method: Method | None = knob(
        None,
        f"What a round verifies. {'; '.join(f'{name}: {spec.help}' for name, spec in METHODS.items())}.  [default: "
        "auto on a CPU, where it was measured, unless a rule of reanchor's is given; reanchor elsewhere]",
    )
    rules: ReAnchorRules = knob(ReAnchorRules(), "Rules of method reanchor.")
    carryover: bool | None = knob(
        None,
        "The baseline block reads the rejected states of the last round.  [default: when the drafter was trained to]",
    )
    sampling_mode: SamplingMode = knob(
        "auto",
        "Drafting and verification when the temperature is above 0. exact-match: argmax drafts, accepted when equal "
        "to the target's sample. coupled: drafts sampled with the target's own Gumbel noise. rejection: speculative "
        "sampling, dflash and ddtree only. auto: coupled for method auto, else exact-match.",
    )
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
        "Run rounds of fixed shapes as CUDA graphs (elsewhere the same functions eagerly). Off by default: capture "
        "has been tested only by running the same functions eagerly.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        changed = self.rules.changed()
        if self.method == "auto" and changed:
            raise ValueError(
                f"{changed[0]} {getattr(self.rules, changed[0])!r} is a rule of method 'reanchor', and method 'auto' "
                "prices every place: use method reanchor, or leave it out"
            )
        self._check_rejection()
        if self.max_nodes is not None and not 1 <= self.max_nodes <= MOST_NODES:
            raise ValueError(
                f"max_nodes must be at least 1 (the anchor) and at most {MOST_NODES}, got {self.max_nodes}"
            )

    def _check_rejection(self) -> None:
        if self.sampling_mode != "rejection":
            return
        if self.method is None:
            raise ValueError(
                "sampling_mode 'rejection' judges tokens drawn from one block: use method dflash or ddtree"
            )
        refusal = METHODS[self.method].rejection_refusal
        if refusal is not None:
            raise ValueError(
                f"sampling_mode 'rejection' judges tokens drawn from one block, and method {self.method!r} "
                f"{refusal}: use method dflash or ddtree, or sampling_mode 'exact-match'"
            )

    @classmethod
    def of(cls, method: Method | None = None, **knobs: Any) -> DecodeConfig:
        """A config of flat keywords: its own fields and those of `ReAnchorRules`. Raises ValueError for others."""
        return cls().having(method=method, **knobs)

    def having(self, **knobs: Any) -> DecodeConfig:
        """This config with some knobs changed, the rules' by their own names."""
        own = {each.name for each in fields(self)}
        rules = {each.name for each in fields(ReAnchorRules)}
        unknown = sorted(knobs.keys() - own - rules)
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is no knob of decoding; there are {', '.join(sorted(own | rules))}"
            )
        changed = {name: value for name, value in knobs.items() if name in rules}
        mine = {name: value for name, value in knobs.items() if name in own}
        if changed:
            mine["rules"] = replace(mine.get("rules", self.rules), **changed)
        return replace(self, **mine)

    def on(self, device: str) -> DecodeConfig:
        """With the method that is usual on a type of device, where none is named."""
        if self.method is not None:
            return self
        return replace(self, method="auto" if device == "cpu" and not self.rules.changed() else "reanchor")

    @property
    def couples(self) -> bool:
        """Whether drafts at a temperature are made with the target's own sampling noise (arXiv 2408.07978)."""
        return self.sampling_mode == "coupled" or (self.sampling_mode == self.method == "auto")

    @property
    def node_budget(self) -> int | None:
        """max_nodes, or the method's own default."""
        return self.max_nodes if self.max_nodes is not None else METHODS[self.method or "plain"].default_nodes


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
