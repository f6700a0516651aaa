"""Method auto: the most valuable tree of all that is known before the target speaks, one object a decode.

A round is three steps: every source claims (sources.py), claims are priced (prices.py), nodes are taken best-first by
the product of prices along their path, which for prices of at most one is the best tree of any size. Numbers only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from reanchor.core import Draft, Plan, Retained, Tree, VerifyResult
from reanchor.proposal.mixture import SourceMixture
from reanchor.proposal.planner import RoundPlanner
from reanchor.proposal.proposer import ProposerSetting, TopCandidates
from reanchor.proposal.retention import first_children
from reanchor.proposal.sources import (
    LOOKUP_CONTEXT,
    CandidateSet,
    CoupledSource,
    Probabilities,
    PromptLookup,
    RecycledTokens,
    ShiftedCandidates,
    Source,
    baseline_source,
    verifier_source,
)
from reanchor.proposal.tree_builder import TreeBuilder

CANDIDATES = 16  # of the drafter, at every position of a block
PREVIEW_NODES = 16  # nodes of the tree that is grown to see what a round is worth without a draft

Offer = tuple[float, int, int]  # price, token, origin


class AutoProposer:
    """What one decode has learnt, and the trees it makes of it.

    A round calls plan, assemble and observe, in this order. With costs, sizes are chosen for speed, up to `max_nodes`;
    without, every tree has max_nodes nodes and every block is drafted.
    """

    top_k = CANDIDATES
    draws_drafts = True

    def __init__(self, setting: ProposerSetting) -> None:
        prompt, sampled, costs = setting.prompt, setting.sampled, setting.latency
        times, max_nodes = setting.noise, setting.config.node_budget or 1
        self.max_shifts, self.drafts = setting.config.rules.max_shifts, setting.drafts
        self.prices, self.recall, self.text = SourceMixture(sampled=sampled), RecycledTokens(), PromptLookup()
        if costs is not None:  # what earlier decodes learnt
            self.prices = costs.experience.prices = costs.experience.prices or self.prices
        self.added = setting.sources
        self.text.extend(prompt)
        self.times, self.sampled = times, sampled
        self.seen: dict[int, Any] = {}  # times by depth, as the round under way saw them
        self.noise_is_predictable = False  # between plan and verification
        self.states: list[Probabilities] = []  # the target's candidates at the retained states
        self.sources: list[Source] = []
        self.max_nodes, self.costs = max_nodes, costs
        self.planner = RoundPlanner(costs, setting.drafts) if costs is not None else None
        self.current = Plan("plain", 0, "fixed")
        self.known = self.drafted = 0.0  # what this round's trees are worth without and with a draft
        self.committed = 1  # tokens of the last round

    def plan(self, shifts: int, max_depth: int) -> Plan:
        """What the coming round is to do. shifts: shifted blocks there could be; max_depth: tokens still allowed, less
        the bonus.
        """
        self.seen.clear()
        self.noise_is_predictable = True
        if self.planner is None:
            self.current = Plan("shifted" if shifts else "baseline", 1 + shifts, "fixed")
            if not self.drafts:
                self.current = Plan("lookup", 0, "fixed")
            if not max_depth:
                self.current = Plan("plain", 0, "fixed")
            return self.current
        self.planner.took(self.committed, self.planner.costs.correct())
        self.planner.costs.context = len(self.text.text) - 1
        self.sources = self._standing()
        known = TreeBuilder(self.text.text[-1], min(PREVIEW_NODES, self.max_nodes), max_depth)
        values = self._grow(known, self.planner.growth("lookup", known.max_nodes or 1).pays)
        self.known = self.planner.size(values, "lookup")[0]
        self.current = self.planner.choose(values, shifts) if max_depth else Plan("plain", 0, "pays")
        return self.current

    def assemble(self, draft: Draft, retained: Retained, max_depth: int) -> Tree:
        """The best tree for this round's draft. Its paths are left out: `retain` finds the one it needs."""
        # confidence is of being the target's favourite, which it need not draw
        blocks = draft_sources(replace(draft, confidence=None) if self.sampled else draft)
        self.sources = [*(blocks if draft.coupled else self._raced(blocks)), *self._standing()]
        builder = TreeBuilder(
            draft.blocks[0][0], self.max_nodes, 0 if self.current.name == "plain" else max_depth
        )
        kind = "draft" if self.current.blocks else "lookup"
        if self.planner is None:
            values = self._grow(builder)
        else:
            made = self.current.why == "probe"  # which is to find out what a tree takes, too
            values = self._grow(builder, self.planner.growth(kind, self.max_nodes, made).pays)
            self.drafted, nodes = self.planner.size(values, kind)
            builder.cut(self.planner.size(values, kind, made)[1] if made else nodes)
        return builder.freeze(
            len({origin for origin in builder.origins if origin > 0}), values[: len(builder.tokens)]
        )

    def _standing(self) -> list[Source]:
        """The sources that need no draft."""
        return self._raced([verifier_source(self.states), self.recall, self.text, *self.added])

    def _raced(self, sources: list[Source]) -> list[Source]:
        return (
            sources if self.times is None else [CoupledSource(source, self.noise_rows) for source in sources]
        )

    def noise_rows(self, depth: int) -> Any:
        """What this round knows of a depth; None after its tokens are committed, for a depth nobody looked at."""
        if depth not in self.seen and self.noise_is_predictable:
            assert self.times is not None
            self.seen[depth] = self.times(depth).numpy(force=True)
        return self.seen.get(depth)

    def _grow(self, builder: TreeBuilder, pays: Callable[[float], bool] = lambda value: True) -> list[float]:
        return grow_tree(
            builder, lambda node: self.prices.of(self.claims(builder, node), builder.depths[node]), pays
        )

    def claims(self, tree: TreeBuilder | Tree, node: int) -> list[CandidateSet]:
        path, depth = self.path(tree, node), tree.depths[node]
        return [claim for source in self.sources for claim in source.claims(path, depth)]

    def path(self, tree: TreeBuilder | Tree, node: int) -> list[int]:
        """The end of the text before the anchor, then the tokens from the anchor to the node."""
        below = []
        while node >= 0:
            below.append(tree.tokens[node])
            node = tree.parents[node]
        return [*self.text.text[-LOOKUP_CONTEXT:-1], *reversed(below)]

    def prepare(self, draft: Draft) -> Draft:
        return draft

    def retain(self, tree: Tree, result: VerifyResult) -> list[int]:
        return first_children(tree, result)

    def observe(
        self, tree: Tree, result: VerifyResult, candidates: TopCandidates, retained: Sequence[int]
    ) -> None:
        """Update the source weights, and keep the target's candidates at every node. candidates(): [N]."""
        self.states, self.noise_is_predictable = [], False
        self._learn_prices(tree, result, candidates(), retained)
        self.text.extend(result.tokens)
        if self.planner is not None and tree.values:
            shifted = sum(tree.origins[node] > 0 for node in result.path)
            predicted, self.committed = sum(tree.values), len(result.tokens)
            self.planner.learn(self.current, self.known, self.drafted, predicted, self.committed, shifted)
            self.planner.costs.close(self.current.blocks, len(tree))

    def _learn_prices(
        self, tree: Tree, result: VerifyResult, believed: Sequence[Probabilities], kept: Sequence[int]
    ) -> None:
        for node, token in zip(result.path, result.tokens, strict=True):
            self.prices.learn(self.claims(tree, node), tree.depths[node], token)
        for node in [*range(len(tree)), *result.path]:  # what was accepted has the last word on its context
            self.recall.learn(self.path(tree, node), believed[node])
        self.states = [believed[node] for node in kept]


def draft_sources(draft: Draft) -> list[Source]:
    """The blocks as sources, the baseline first; a draft without candidates is taken at its word."""
    if draft.candidates is None or draft.log_probs is None:
        blocks = [[{token: 1.0} for token in block[1:]] for block in draft.blocks]
    else:
        blocks = [
            [dict(zip(*row, strict=True)) for row in zip(*block, strict=True)]
            for block in zip(
                draft.candidates.tolist(), finite_probabilities(draft.log_probs.exp()), strict=True
            )
        ]
    if draft.confidence is not None:
        told = zip(blocks, draft.blocks, finite_probabilities(draft.confidence), strict=True)
        blocks = [
            [rescale_by_confidence(*each) for each in zip(rows, block[1:], sure, strict=False)]
            for rows, block, sure in told
        ]
    found: list[Source] = []
    for offset, block, rows in zip(draft.offsets, draft.blocks, blocks, strict=False):
        kept = rows[: len(block) - 1]  # a drafter may cut its blocks
        found.append(
            ShiftedCandidates(offset, block[0], kept, draft.coupled) if offset else baseline_source(kept)
        )
    return found


def finite_probabilities(chances: Any) -> list[Any]:
    """A drafter that overflows says nothing; what is no number would stay in the prices of every later decode."""
    return chances.nan_to_num(0.0).tolist()


def rescale_by_confidence(row: dict[int, float], token: int, chance: float) -> dict[int, float]:
    """A block's candidates at a position, its own token as likely as the head made for that says."""
    others = 1.0 - row.get(token, 0.0)
    scale = (1.0 - chance) / others if others > 0 else 0.0
    return {**{each: scale * known for each, known in row.items()}, token: chance}


def grow_tree(
    builder: TreeBuilder,
    offers: Callable[[int], list[Offer]],
    pays: Callable[[float], bool] = lambda value: True,
) -> list[float]:
    """Add the most valuable nodes until the budget or the offers are spent or no more pays; the value of every node.

    offers(node): what may follow it, dearest first; pays(value): is the next node to be let in? A node's value is the
    product of the prices along its path: the probability, if prices are right, that the round accepts it; their sum is
    the expected acceptance length.
    """
    values = [1.0]
    open_offers: dict[int, list[Offer]] = {}
    frontier: list[tuple[float, int, int]] = []  # (minus value, parent, place in its offers)

    def open_next(parent: int, place: int) -> None:
        if place < len(open_offers[parent]):
            value = values[parent] * open_offers[parent][place][0]
            heapq.heappush(frontier, (-value, parent, place))

    def open_children(node: int) -> None:
        if builder.max_depth is None or builder.depths[node] < builder.max_depth:
            open_offers[node] = offers(node)
            open_next(node, 0)

    open_children(0)
    while frontier and (builder.max_nodes is None or len(builder.tokens) < builder.max_nodes):
        value, parent, place = heapq.heappop(frontier)
        if not pays(-value):
            break
        _, token, origin = open_offers[parent][place]
        node = builder.add(parent, token, origin)
        values.append(-value)
        open_children(node)
        open_next(parent, place + 1)
    return values
