"""Which of a tree's tokens the target would have produced itself; it knows nothing of how they were proposed.

Losslessness rests on this file alone: every committed token is the target's own choice given the committed
prefix, whatever the tree (method, steps 4 and 5).
"""

from __future__ import annotations

from torch import Tensor

from reanchor.core import Tree, Verdict
from reanchor.sampling import Choice


def verify(tree: Tree, logits: Tensor, choice: Choice) -> Verdict:
    """Walk from the root while the target's token at the current node is one of its children. logits: [N, V]"""
    drawn = choice.at_every_node(logits)
    path, tokens, stopped = [0], [], False
    while True:
        node = path[-1]
        token = choice.after_prefix(logits[node]) if drawn is None else drawn[node]
        tokens.append(token)
        stopped = choice.commit(token)
        child = tree.children.get((node, token))
        if stopped or child is None:
            break
        path.append(child)
    return Verdict(path, tokens, logits.argmax(-1).tolist() if drawn is None else drawn, stopped)
