"""Equality gate of greedy outputs: where two differ, may rounding explain it? It knows tokens and the target's logits.

At float32 and above nothing may differ. Below, passes of different width give slightly different logits at the same
position, and leave different rows in the cache for later ones. A difference is a tie when the logits of the two tokens
lie closer than that noise, measured at the very position and those before it in passes that begin where the answer
does, and a fault otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reanchor.proposal import TreeBuilder
from reanchor.target import Target

EXACT = (torch.float32, torch.float64)
WIDTHS = (1, 4, 16)  # verify widths that are compared with the full pass
POSITIONS = 16  # how many positions up to the difference the noise is measured at
FARTHEST = 128  # positions of the answer, up to the difference, that are read anew at every width


@dataclass(frozen=True)
class Difference:
    """Where an output leaves the reference."""

    method: str
    turn: int
    index: int  # of the first token that differs
    gap: float  # between the two best logits there
    loss: float  # of the worse of the two tokens against the best logit
    noise: float | None  # None where nothing may differ
    fault: bool

    def __str__(self) -> str:
        kind = "fault" if self.fault else "tie"
        noise = "" if self.noise is None else f", noise {self.noise:.3g}"
        gaps = f"top-2 logit gap {self.gap:.3g}, loss {self.loss:.3g}{noise}"
        return f"{self.method}: token {self.index} differs, {gaps}: {kind}"


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens agree before the first that differs."""
    pairs = zip(left, right, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


class Gate:
    """Judges outputs against a reference on one target."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def judge(
        self, method: str, turn: int, prompt: list[int], reference: list[int], tokens: list[int]
    ) -> Difference | None:
        if reference == tokens:
            return None
        index = common_prefix_length(reference, tokens)
        prefix = torch.tensor(prompt + reference[:index], device=self.target.device)
        full = self.full_logits(prefix)  # [R, V]
        best = full[-1].topk(2).values.tolist()
        pair = [row[index] for row in (reference, tokens) if index < len(row)]
        loss = best[0] - min(full[-1, token].item() for token in pair)
        exact, ended = self.target.model.dtype in EXACT, len(pair) < 2
        noise = None if exact else self.noise(prefix, full, index)
        fault = exact or ended or noise is None or loss > noise
        return Difference(method, turn, index, best[0] - best[1], loss, noise, fault)

    @torch.no_grad()
    def full_logits(self, prefix: Tensor) -> Tensor:
        """Logits of the last positions in one pass over the whole prefix: [R, V]"""
        rows = min(POSITIONS, len(prefix) - 1) or 1
        return self.target.model(input_ids=prefix[None], logits_to_keep=rows).logits[0].float()

    def noise(self, prefix: Tensor, full: Tensor, answered: int) -> float:
        """The most that the gap between the two best tokens moves with the width of the passes that read the answer's
        `answered` tokens; the last position's with the prefill, too, which decides the first token and may be no pass
        of transformers'. full: logits of the last positions, [R, V]
        """
        if len(prefix) < 2:
            return 0.0
        pair = full.topk(2).indices  # [R, 2]
        read = max(len(full), min(answered, FARTHEST))
        gaps = [self.gap(full, pair)] + [
            self.gap(self.chain_logits(prefix, read, width)[-len(full) :], pair) for width in WIDTHS
        ]
        own = self.target.prefill(prefix, self.target.new_cache()).logits[-1:].float()
        last = torch.cat([*(each[-1:] for each in gaps), self.gap(own, pair[-1:])])
        stacked = torch.stack(gaps)  # [widths, R]
        widths = (stacked.max(0).values - stacked.min(0).values).max()
        return max(float(widths), float(last.max() - last.min()))

    @staticmethod
    def gap(logits: Tensor, pair: Tensor) -> Tensor:
        two = logits.gather(-1, pair)
        return two[:, 0] - two[:, 1]

    def chain_logits(self, prefix: Tensor, rows: int, width: int) -> Tensor:
        """Logits of the last `rows` positions when verified `width` at a time: [R, V]"""
        cache, start = self.target.new_cache(), len(prefix) - rows
        self.target.prefill(prefix[:start], cache)
        parts = []
        for at in range(start, len(prefix), width):
            chunk = prefix[at : at + width].tolist()
            builder = TreeBuilder(chunk[0])
            builder.insert(chunk, 0)
            parts.append(self.target.verify(builder.freeze(), cache).logits.float())
            cache.commit(list(range(len(chunk))))
        return torch.cat(parts)
