"""Which of a tree's tokens the target would have produced itself; it knows nothing of how they were proposed.

Losslessness rests on this file alone: every committed token is the target's own choice given the committed
prefix, whatever the tree (method, steps 4 and 5); or, by rejection, distributed as that choice is.
"""

from __future__ import annotations

from torch import Tensor

from reanchor.core import Tree, Verdict
from reanchor.sampling import Choice


def verify(tree: Tree, logits: Tensor, choice: Choice, drawn_from: Tensor | None = None) -> Verdict:
    """Walk from the root while the target's token at the current node is one of its children. logits: [N, V]

    With `drawn_from` [K, V], the distributions a chain's drafts were drawn from, drafts are accepted by ratio.
    """
    if drawn_from is not None:
        return verify_by_rejection(tree, logits, choice, drawn_from)
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


def verify_by_rejection(tree: Tree, logits: Tensor, choice: Choice, drawn_from: Tensor) -> Verdict:
    """Accept a chain's draft x with probability min(1, p(x)/q(x)), else draw from what p has beyond q."""
    wanted = choice.distribution(logits)  # [N, V]
    path, tokens, stopped = [0], [], False
    while True:
        node = path[-1]
        child = node + 1 if node + 1 < len(tree) else None
        if child is None:
            token = int(choice.draw_from(wanted[node]))
        else:
            token, offered, asked = tree.tokens[child], drawn_from[node], wanted[node]
            if choice.chance() * float(offered[token]) >= float(asked[token]):
                token, child = int(choice.draw_from(beyond(asked, offered))), None
        tokens.append(token)
        stopped = choice.commit(token)
        if stopped or child is None:
            break
        path.append(child)
    return Verdict(path, tokens, logits.argmax(-1).tolist(), stopped)


def beyond(wanted: Tensor, offered: Tensor) -> Tensor:
    """What the target gives a token and the draft does not, as weights; `wanted` itself when rounding left none."""
    rest = (wanted - offered).clamp(min=0)
    return rest if float(rest.sum()) > 0 else wanted
