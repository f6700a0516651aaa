"""A block drafter's description, whatever dialect its checkpoint spoke; it knows no file and no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Family = Literal["dflash", "dflash2", "dspark", "domino"]


@dataclass(frozen=True)
class LayerRule:
    """Which of the keys its block reads a layer's query sees, by position."""

    causal: bool = False  # only keys at or before the query
    window: int | None = None  # only keys less than this far away; None sees all


@dataclass(frozen=True)
class MarkovConfig:
    """A correction by the token before (DSpark)."""

    rank: int
    kind: str  # vanilla | gated | rnn


@dataclass(frozen=True)
class ConfidenceConfig:
    """P(a proposal is accepted, given those before it were)."""

    markov: bool  # reads the Markov embedding of the token before, too
    temperatures: tuple[float, ...]  # [K] calibration: the logit of position k is divided by its own


@dataclass(frozen=True)
class DominoConfig:
    """A correction by a GRU over the tokens before."""

    width: int
    state: int
    prefix: int  # first proposals left uncorrected


@dataclass(frozen=True)
class SelectorConfig:
    """A walk over each slot's best candidates (DFlash 2)."""

    rank: int
    top_k: int


@dataclass(frozen=True)
class ConvolutionConfig:
    """Short causal convolutions over a block's slots around each sublayer (DFlash 2)."""

    kernel: int
    group: int


@dataclass(frozen=True)
class DrafterConfig:
    dialect: str  # who wrote the checkpoint: z-lab, DeepSpec, SpecForge, speculators
    family: Family
    hidden_size: int  # H
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    bias: bool  # on all four attention projections
    activation: str
    vocab_size: int  # V, the target's
    block_size: int  # B
    mask_token_id: int
    tap_layers: tuple[int, ...]  # -1 is the embedding's output
    target_layers: int | None  # layers of the target it was trained for, when the checkpoint says so
    target_hidden_size: int
    rules: tuple[LayerRule, ...]  # [layers]
    rope: Mapping[str, Any]  # transformers' rope_parameters
    max_positions: int
    shifted: bool = False  # slot j predicts position j+1 rather than j
    gemma: bool = False  # Gemma 4's layers (DeepSpec) rather than Qwen3's
    shared_kv: bool = False  # values are the unnormed keys
    own_embedding: bool = False
    own_head: bool = False
    draft_vocab_size: int | None = None  # a reduced vocabulary, mapped to the target's by `d2t`
    embedding_scale: float | None = None  # of the raw embedding; None: as the target's module scales
    output_multiplier: float = 1.0
    softcap: float | None = None
    markov: MarkovConfig | None = None
    confidence: ConfidenceConfig | None = None
    domino: DominoConfig | None = None
    selector: SelectorConfig | None = None
    convolution: ConvolutionConfig | None = None
    carryover: bool = False  # has an embedding that marks rejected states, and was trained to read them
    target: str | None = None  # the target it names

    @property
    def layers(self) -> int:
        return len(self.rules)

    @property
    def proposals(self) -> int:
        """K: an unshifted anchor slot predicts nothing."""
        return self.block_size if self.shifted else self.block_size - 1

    @property
    def scored(self) -> int:
        """Tokens the head scores."""
        return self.draft_vocab_size or self.vocab_size
