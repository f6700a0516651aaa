"""Drafter protocol: a drafter scores positions; it builds no tree and keeps no state between calls of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from torch import Tensor

from reanchor.core import Draft, Retained

Carry = Literal["none", "baseline", "all"]  # which blocks read the retained states as carried rows
# scores [blocks, M] -> a drawn column of each [blocks, 1] and the distribution it was drawn from [blocks, M]
DrawFunction = Callable[[Tensor], tuple[Tensor, Tensor]]
# scores [rows, M], how many places after the anchor's successor each row's token stands, the tokens that the columns
# are (None: all in order) -> scores of which the largest is the one that would be drawn (`TokenSelector.race`)
CoupleFunction = Callable[[Tensor, Sequence[int], Tensor | None], Tensor]


class Drafter(Protocol):
    """A block drafter. All state of a decode lives in the cache that `new_cache` makes, one a call."""

    tap_layers: tuple[int, ...]  # target layers whose outputs, concatenated in this order, are the features
    block_size: int  # B, anchor slot included
    proposals: int  # K

    def new_cache(self) -> Any:
        """An empty context: `len(cache)` is the number of committed positions, the anchor's position i."""

    def commit(self, features: Tensor, cache: Any) -> None:
        """Append target features of newly committed positions, in order. features: [m, Dc]"""

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

        Leaves the cache as it was. top_k > 0 also fills `candidates` and `log_probs`. `carry` is asked only of a
        drafter that has an attribute `carryover`, true. `draw` replaces the argmax and fills `distribution`;
        `couple` rescales all scores before anything is chosen by them; it is asked only of a drafter whose
        `supports_coupling` is true.
        """


class NoDrafter:
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
