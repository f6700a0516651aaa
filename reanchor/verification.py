"""Which of a tree's tokens the target would have produced itself; it knows nothing of how they were proposed.

Losslessness rests on this file alone: every committed token is the target's own selector given the committed
prefix, whatever the tree (method, steps 4 and 5); or, by rejection, distributed as that selector is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reanchor.argmax import argmax
from reanchor.core import Tree, VerifyResult
from reanchor.sampling import TokenSelector


def verify(
    tree: Tree, logits: Tensor, selector: TokenSelector, drawn_from: Tensor | None = None
) -> VerifyResult:
    """Walk from the root while the target's token at the current node is one of its children. logits: [N, V]

    With `drawn_from` [K, V], the distributions that nodes were drawn from by depth, they are accepted by ratio.
    """
    if drawn_from is not None:
        return verify_by_rejection(tree, logits, selector, drawn_from)
    drawn = selector.select_all(logits, tree.depths)
    path, tokens, stopped = [0], [], False
    while True:
        node = path[-1]
        token = selector.select_next(logits[node]) if drawn is None else drawn[node]
        tokens.append(token)
        stopped = selector.commit(token)
        child = tree.children.get((node, token))
        if stopped or child is None:
            break
        path.append(child)
    return VerifyResult(path, tokens, argmax(logits).tolist() if drawn is None else drawn, stopped)


def verify_by_rejection(
    tree: Tree, logits: Tensor, selector: TokenSelector, drawn_from: Tensor
) -> VerifyResult:
    """Try the children of a node in order; siblings were drawn without replacement from one distribution."""
    offspring: list[list[int]] = [[] for _ in tree.tokens]
    for node, parent in enumerate(tree.parents[1:], 1):
        offspring[parent].append(node)
    path, tokens, stopped = [0], [], False
    while True:
        node, child = path[-1], None
        wanted = selector.distribution(logits[node : node + 1])[0]  # [V]
        if offspring[node]:
            token, child = accept_sibling(
                tree, offspring[node], wanted, drawn_from[tree.depths[node]], selector
            )
        else:
            token = int(selector.draw_from(wanted))
        tokens.append(token)
        stopped = selector.commit(token)
        if stopped or child is None:
            break
        path.append(child)
    return VerifyResult(path, tokens, argmax(logits).tolist(), stopped)


def accept_sibling(
    tree: Tree, siblings: list[int], wanted: Tensor, offered: Tensor, selector: TokenSelector
) -> tuple[int, int | None]:
    """Accept a sibling x with probability min(1, p(x)/q(x)), else go on with what p has beyond q against q without
    x; of the last p a token is drawn. -> the token and, unless it was drawn, its node
    """
    for child in siblings:
        token = tree.tokens[child]
        if selector.chance() * float(offered[token]) < float(wanted[token]):
            return token, child
        wanted, offered = residual(wanted, offered), remove_token(offered, token)
    return int(selector.draw_from(wanted)), None


def residual(wanted: Tensor, offered: Tensor) -> Tensor:
    """What the target gives a token and the draft does not, as a distribution; `wanted` itself when rounding left
    none.
    """
    rest = (wanted - offered).clamp(min=0)
    total = rest.sum()
    return rest / total if float(total) > 0 else wanted


def remove_token(offered: Tensor, token: int) -> Tensor:
    """The distribution of the next sibling, drawn once `token` is out of the urn; zeros when it was the last."""
    rest = offered.clone()
    rest[token] = 0
    return rest / rest.sum().clamp(min=torch.finfo(rest.dtype).tiny)
