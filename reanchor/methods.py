"""The table of methods: a row each, with the file of its proposer and what the rest of the engine asks about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["auto", "reanchor", "dflash", "ddtree", "plain"]


@dataclass(frozen=True)
class MethodSpec:
    """What a method is, for everything but its proposer.

    Args:
        proposer: `module:Class` inside `reanchor.proposal`; see `reanchor.proposal.proposer.Proposer`.
        help: one sentence for `--help`.
        drafts: whether it asks a drafter at all.
        needs_drafter: whether there must be one.
        default_nodes: its node budget where none is given; None: no limit.
        rejection_refusal: why speculative sampling cannot judge its trees; None: it can.
        graphed: whether its rounds have a form of fixed shapes (`reanchor.graphs`).
        retains: whether it reads the states of rejected nodes by itself, Carryover apart.
    """

    proposer: str
    help: str
    drafts: bool = True
    needs_drafter: bool = False
    default_nodes: int | None = None
    rejection_refusal: str | None = None
    graphed: bool = False
    retains: bool = False


METHODS: dict[str, MethodSpec] = {
    "auto": MethodSpec(
        "auto:AutoProposer",
        "the best tree of every source's candidates, sized by what pays on this machine",
        default_nodes=64,
        rejection_refusal="names its candidates without a draw, where rejection would accept what the target's own "
        "draw does",
        retains=True,
    ),
    "reanchor": MethodSpec(
        "reanchor:ReAnchorProposer",
        "the baseline block and the blocks re-anchored on retained states",
        needs_drafter=True,
        rejection_refusal="merges blocks of several distributions",
        graphed=True,
        retains=True,
    ),
    "dflash": MethodSpec("chain:ChainProposer", "the baseline block alone", needs_drafter=True, graphed=True),
    "ddtree": MethodSpec(
        "ddtree:DDTreeProposer",
        "the likeliest tree of the baseline block's candidates",
        needs_drafter=True,
        default_nodes=64,
    ),
    "plain": MethodSpec("plain:PlainProposer", "one token a round", drafts=False, graphed=True),
}
