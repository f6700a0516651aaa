"""The choice of a greedy decoder. It knows no model."""

from __future__ import annotations

from torch import Tensor


def argmax(scores: Tensor) -> Tensor:
    """Place of the largest of each row, the first of equals, as `torch.argmax`. [..., V] -> [...]

    On a CPU torch's own looks at half-precision scores one by one; `max` finds the same place in a sixth of the time.
    """
    return scores.max(-1).indices if scores.device.type == "cpu" else scores.argmax(-1)
