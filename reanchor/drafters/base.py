"""Drafter protocol: a drafter scores positions; it builds no tree and keeps no state between calls of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor

from reanchor.core import Draft, Retained

Carry = Literal["none", "baseline", "all"]  # which blocks read the retained states as carried rows
# scores [blocks, M] -> a drawn column of each [blocks, 1] and the distribution it was drawn from [blocks, M]
DrawFunction = Callable[[Tensor], tuple[Tensor, Tensor]]
# scores [rows, M], how many places after the anchor's successor each row's token stands, the tokens that the columns
# are (None: all in order) -> scores of which the largest is the one that would be drawn (`TokenSelector.race`)
CoupleFunction = Callable[[Tensor, Sequence[int], Tensor | None], Tensor]


class Drafter(ABC):
    """A block drafter. All state of a decode lives in the cache that `new_cache` makes, one a call.

    Subclasses set the attributes without a default; the others declare what a drafter can do beyond the minimum.
    """

    tap_layers: tuple[int, ...]  # target layers whose outputs, concatenated in this order, are the features
    block_size: int  # B, anchor slot included
    proposals: int  # K

    carryover: bool = False  # trained to read rejected states (Carryover)
    supports_coupling: bool = False  # can draft with the target's sampling noise: `couple` of `draft`

    @abstractmethod
    def new_cache(self) -> Any:
        """An empty context: `len(cache)` is the number of committed positions, the anchor's position i."""

    @abstractmethod
    def commit(self, features: Tensor, cache: Any) -> None:
        """Append target features of newly committed positions, in order. features: [m, Dc]"""

    @abstractmethod
    def draft(
        self,
        anchor: int,
        retained: Retained,
        shifts: Sequence[int],
        cache: Any,
        top_k: int = 0,
        carry: Carry = "none",
        draw: DrawFunction | None = None,
        couple: CoupleFunction | None = None,
    ) -> Draft:
        """Baseline block of `anchor` at position len(cache) and, for every d in `shifts`, the block anchored
        at retained.tokens[d-1] at position len(cache)+d with context F_{<i}, R_1..R_d; one batched call.

        Leaves the cache as it was. top_k > 0 also fills `candidates` and `log_probs`. `carry` other than none is asked
        only where `carryover` is true, and `couple`, which rescales all scores before anything is chosen by them, where
        `supports_coupling` is. `draw` replaces the argmax and fills `distribution`.
        """

    def static_draft_refusal(self) -> str | None:
        """Why CUDA graphs cannot hold its draft; None: they can (`StaticShapeDraft`)."""
        return f"{type(self).__name__} has no draft of fixed shapes"

    def use_attention(self, attention: Any) -> None:
        """Attend by the target's backend, so that there is one choice and one report of it."""
        self.attention = attention

    def precision(self) -> str:
        """The dtype of its weights, for the key of measured latencies; empty where it has none."""
        return ""


class WrappedDrafter(Drafter):
    """A drafter that does what another does; subclasses watch or change single calls."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.tap_layers, self.block_size = drafter.tap_layers, drafter.block_size
        self.proposals, self.carryover = drafter.proposals, drafter.carryover
        self.supports_coupling = drafter.supports_coupling

    def new_cache(self) -> Any:
        return self.drafter.new_cache()

    def commit(self, features: Tensor, cache: Any) -> None:
        self.drafter.commit(features, cache)

    def draft(
        self, anchor: int, retained: Retained, shifts: Sequence[int], cache: Any, *more: Any, **asked: Any
    ) -> Draft:
        return self.drafter.draft(anchor, retained, shifts, cache, *more, **asked)

    def use_attention(self, attention: Any) -> None:
        self.drafter.use_attention(attention)

    def precision(self) -> str:
        return self.drafter.precision()


class NoDrafter(Drafter):
    """Drafts nothing, so that the loop is plain decoding: one token a round."""

    tap_layers: tuple[int, ...] = ()
    block_size = 1
    proposals = 0

    def new_cache(self) -> None:
        return None

    def commit(self, features: Tensor, cache: None) -> None:
        return None

    def draft(
        self,
        anchor: int,
        retained: Retained,
        shifts: Sequence[int],
        cache: None,
        top_k: int = 0,
        carry: Carry = "none",
        draw: DrawFunction | None = None,
        couple: CoupleFunction | None = None,
    ) -> Draft:
        return Draft((), [[anchor]])
