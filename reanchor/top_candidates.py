"""The target's likeliest tokens at every node of a tree, which method auto recycles in later rounds.

Token Recycling, arXiv 2408.08696.
"""

from __future__ import annotations

from torch import Tensor

RECYCLED_TOP_K = 8
CHUNK, CHUNKS = 128, 32  # scores in a chunk, chunks that are looked into


def top_candidates(logits: Tensor, temperature: float = 1.0) -> list[dict[int, float]]:
    """Token -> probability of the likeliest tokens at every node. logits: [N, V]

    Two-level top-k: take the 32 of V/128 chunks with the largest maxima, then top-k within. The softmax is over those
    chunks only (slightly over-estimates), because a full-vocabulary softmax dominates host time.
    """
    width = logits.shape[-1]
    near = logits
    if in_chunks := width % CHUNK == 0 and width > CHUNK * CHUNKS:
        chunks = logits.view(len(logits), -1, CHUNK)
        held = chunks.amax(-1).topk(CHUNKS).indices  # [N, CHUNKS]
        near = chunks.gather(1, held[..., None].expand(-1, -1, CHUNK)).flatten(1)
    tokens = near.topk(min(RECYCLED_TOP_K, width)).indices
    # NaN would stay in what is learnt
    probabilities = (near.float() / temperature).softmax(-1).gather(1, tokens).nan_to_num(0.0).tolist()
    places = tokens.tolist()
    if in_chunks:
        places = [
            [chunk[place // CHUNK] * CHUNK + place % CHUNK for place in row]
            for chunk, row in zip(held.tolist(), places, strict=True)
        ]
    return [dict(zip(*row, strict=True)) for row in zip(places, probabilities, strict=True)]
