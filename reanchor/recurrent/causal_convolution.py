"""The short causal convolution before a recurrence, over a tree: a node's window is its own row, its ancestors' and,
from the root on back, the last committed ones. What is kept are the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reanchor.recurrent.lineage import Lineage


def verify(rows: Tensor, weight: Tensor, bias: Tensor | None, committed: Tensor, lineage: Lineage) -> Tensor:
    """[N, C] in the weight's dtype, before any activation.

    rows: [N, C] of the nodes; weight: [C, W], its last column for a node's own row; committed: [C, W - 1 or more], the
    columns before the root, zeros where the text is shorter. Sums in single precision at least.
    """
    width = weight.shape[1]
    dtype = torch.promote_types(weight.dtype, torch.float32)
    start = committed.shape[1] - (width - 1)
    # in the weight's dtype first, as transformers does
    reach = torch.cat([committed[:, start:].T.to(weight.dtype), rows.to(weight.dtype)]).to(dtype)
    taps = weight.T.to(dtype)  # [W, C]
    windows = lineage.windows(width)
    total = reach[windows[-1]] * taps[-1]
    for place in range(width - 1):
        total = total.addcmul_(reach[windows[place]], taps[place])
    if bias is not None:
        total += bias.to(dtype)
    return total.to(weight.dtype)


def commit(committed: Tensor, rows: Tensor, path: Tensor) -> Tensor:
    """The last columns [C, W] after a path, another tensor than `committed` [C, W]. rows: [N, C]; path: [L]"""
    behind = torch.cat([committed, rows[path].T.to(committed.dtype)], dim=1)
    return behind[:, -committed.shape[1] :].contiguous()
