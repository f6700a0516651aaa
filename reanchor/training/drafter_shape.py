"""Shape of a new drafter; it knows no target."""

from __future__ import annotations

from dataclasses import dataclass

from reanchor.config import knob


@dataclass(frozen=True)
class DrafterShape:
    """What a new drafter looks like; one that starts from a checkpoint keeps that one's shape."""

    block_size: int | None = knob(None, "Block size, anchor included.  [default: 8, or the checkpoint's]")
    layers: str | None = knob(None, "Target layers to copy, as 7,15,22.  [default: three, spread]")
    taps: str | None = knob(None, "Target layers whose outputs are read, as 1,8,15.  [default: five, spread]")
    mask_token: int | None = knob(
        None, "Token id of empty slots, one that no response holds; a new drafter needs it."
    )
    markov_rank: int = knob(0, "Rank of a Markov head; 0 makes a DFlash drafter.")

    def __post_init__(self) -> None:
        if self.block_size is not None and self.block_size < 2:
            raise ValueError(
                f"block_size must be at least 2 (the anchor and one proposal), got {self.block_size}"
            )
        if self.markov_rank < 0:
            raise ValueError(f"markov_rank must be 0 (none) or positive, got {self.markov_rank}")
