"""Rounds as one call: what may run as regions and why not, and the host's view of a round that did."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reanchor.cache import TreeCache
from reanchor.config import DecodeConfig
from reanchor.core import Retained, Tree, VerifyResult
from reanchor.drafters.base import Drafter, NoDrafter
from reanchor.fused import graph_runner
from reanchor.fused.fused_target import FusedTarget
from reanchor.fused.graph_runner import BUCKETS, StaticBuffers, bucket_for
from reanchor.graphs import device_selector
from reanchor.graphs.device_selector import DeviceSelector
from reanchor.graphs.round_graphs import HEADER, DraftGraph, VerifyGraph
from reanchor.graphs.round_state import RoundState
from reanchor.methods import METHODS
from reanchor.proposal.device_tree import ATTACH, tree_of
from reanchor.sampling import TokenSelector
from reanchor.target import Target

MEMORY = 8  # trees whose sizes say which bucket the next will need
Stage = Callable[[str], AbstractContextManager[object]]


class GraphedRound(NamedTuple):
    """What a round came to, as the host's path would have it."""

    tree: Tree
    result: VerifyResult
    drafted: int  # blocks
    retained: Retained


def graphs_refusal(target: Target, drafter: Drafter, config: DecodeConfig) -> str | None:
    """Why no decode of these can have whole rounds; None: it can."""
    if not isinstance(target, FusedTarget):
        return "the target runs by transformers' forward"
    if not METHODS[config.method or "plain"].graphed:
        return f"method {config.method} makes its trees on the host"
    if (
        config.rules.attach not in ATTACH
        or config.rules.scope != "full"
        or config.rules.verifier_path != "off"
    ):
        return "attach, scope and verifier_path other than the method's own are the host's"
    if config.carryover:
        return "rejected states are carried over"
    if isinstance(drafter, NoDrafter):
        return None
    return drafter.static_draft_refusal()


@dataclass
class RoundBuffers:
    """What the regions of one arena share beside its rows."""

    state: RoundState
    draws: DeviceSelector
    ends: Tensor  # [E] tokens that end decoding
    context: Any = None  # the drafter's buffers: (buffers, capacity, device length)
    weights: tuple[int, ...] = ()  # addresses of the drafter's


@dataclass
class GraphCounts:
    """Of one decode."""

    played: int = 0
    again: int = 0  # rounds whose tree was larger than the bucket they were first run in
    on_host: dict[str, int] = field(default_factory=dict)  # reason -> rounds


@dataclass
class GraphedRounds:
    """Whole rounds of one target and drafter, for one decode after another, or several by turns."""

    target: Target
    drafter: Drafter
    config: DecodeConfig
    held: dict[StaticBuffers, RoundBuffers] = field(default_factory=dict)
    counts: GraphCounts = field(default_factory=GraphCounts)  # of the decode that began last

    def __post_init__(self) -> None:
        self.refused = graphs_refusal(self.target, self.drafter, self.config)

    def begin(self, cache: TreeCache, context: Any, selector: TokenSelector) -> GraphedDecode:
        """The rounds of a decode whose prefill is done, and whose context nobody has read."""
        self.counts = GraphCounts()
        return GraphedDecode(self, cache, context, selector)

    def report(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "whole_rounds": counts.played,
            "run_again": counts.again,
            "host_rounds": dict(counts.on_host),
        }


class GraphedDecode:
    """One decode's."""

    def __init__(self, whole: GraphedRounds, cache: TreeCache, context: Any, selector: TokenSelector) -> None:
        self.whole, self.cache, self.context, self.selector = whole, cache, context, selector
        self.config, self.drafter, self.counts = whole.config, whole.drafter, whole.counts
        self.refused = whole.refused or device_selector.selector_refusal(selector, whole.config)
        self.left: Retained | None = None  # what the last round left here; another's has to be loaded
        self.drafts = not isinstance(self.drafter, NoDrafter)
        self.cells = 2 * self.drafter.proposals + 1  # of the longest path there can be
        self.sizes = deque([1 + self.drafter.proposals], MEMORY)  # nodes of the last trees
        budget = min(self.config.node_budget or BUCKETS[-1], BUCKETS[-1])
        self.most = budget if self.drafts else 1  # nodes of a tree
        if self.refused is None:
            self.settle()

    def settle(self) -> None:
        """Find this decode's rows among those that regions know."""
        assert isinstance(self.whole.target, FusedTarget)
        self.target, self.regions = self.whole.target, self.whole.target.regions
        arena = self.regions.arena_of(self.cache)
        assert arena is not None, "every cache of a target with regions is lent by them"
        self.arena = arena
        weights = [each.data_ptr() for each in getattr(self.drafter, "parameters", list)()]
        held = self.whole.held.get(arena)
        if (
            held is None
            or held.weights != tuple(weights)
            or held.ends.tolist() != sorted(self.selector.end_ids)
            or held.draws.rules != device_selector.rules_of(self.selector)
        ):
            for key in [key for key in arena.regions if isinstance(key, tuple)]:
                del arena.regions[key]
            held = self.new_held(tuple(weights))
            self.whole.held = {
                each: one for each, one in self.whole.held.items() if each in self.regions.arenas
            }
            self.whole.held[arena] = held
        self.held, self.state = held, held.state
        held.draws.begin(self.selector)
        if self.drafts:
            self.share_buffers()

    def new_held(self, weights: tuple[int, ...]) -> RoundBuffers:
        width = len(self.drafter.tap_layers) * self.target.architecture.hidden
        rows = torch.empty(0, width, dtype=self.target.weights.dtype, device=self.target.device)
        ends = torch.tensor(sorted(self.selector.end_ids), dtype=torch.long, device=self.target.device)
        state = RoundState(self.cells, bucket_for(self.most) or BUCKETS[-1], rows)
        return RoundBuffers(state, DeviceSelector(self.selector), ends, weights=weights)

    def share_buffers(self) -> None:
        """Give the drafter's context the buffers that captured drafts know."""
        if self.held.context is None:
            self.context.reserve(graph_runner.MIN_ROWS)
        else:
            self.context.buffers, self.context.capacity, self.context._device_length = self.held.context
        self.keep_context()

    def keep_context(self) -> None:
        """Buffers that moved take the drafts with them."""
        now = (list(self.context.buffers), self.context.capacity, self.context.device_length())
        before = self.held.context
        if before is None or any(map(lambda one, other: one is not other, now[0], before[0])):
            for key in [key for key in self.arena.regions if isinstance(key, tuple) and key[0] == "draft"]:
                del self.arena.regions[key]
        self.held.context = now

    def takes(self, blocks: int) -> bool:
        """Whether the coming round is for regions; the report counts those that are not, by reason."""
        reason = self.refused or self.regions.refused or self.unfit(blocks)
        if reason is not None:
            self.counts.on_host[reason] = self.counts.on_host.get(reason, 0) + 1
            self.left = None
        return reason is None

    def unfit(self, blocks: int) -> str | None:
        if not self.drafts:
            return None
        if self.selector.room == 1:
            return "only the bonus token is still allowed"
        if self.context.waiting > self.cells:
            return "the prompt's features are projected by the first round"
        unbounded = self.config.node_budget is None or self.config.node_budget > BUCKETS[-1]
        if blocks > self.cells or (unbounded and 1 + blocks * self.drafter.proposals > BUCKETS[-1]):
            return f"its tree may have more than {BUCKETS[-1]} nodes"
        return None

    @torch.no_grad()
    def play(self, anchor: int, retained: Retained, blocks: int, stage: Stage) -> GraphedRound | None:
        """One round; None where the host's path has to take it."""
        blocks = blocks if self.drafts else 0
        if not self.takes(blocks):
            return None
        if retained is not self.left:
            pending = self.context.pending if self.drafts else []
            self.state.load(anchor, retained, pending, self.selector.room)
            if self.drafts:
                self.context.device_length().fill_(self.context.projected)
        with stage("draft"):
            if blocks and not self.draft(blocks):
                return None
        with stage("verify"):
            played = self.verify(blocks)
        if played is not None:
            self.counts.played += 1
        return played

    def draft(self, blocks: int) -> bool:
        self.context.reserve(len(self.context) + 2 * self.cells + blocks * (self.drafter.block_size + 1))
        self.keep_context()
        key = ("draft", blocks)
        if key not in self.arena.regions:
            fixed = self.drafter.fixed(self.context, blocks, self.cells)  # type: ignore[attr-defined]
            region = DraftGraph(self.state, fixed, self.most, self.config)
            if not self.regions.hold(self.arena, key, region, f"a draft of {blocks} blocks"):
                return False
        self.arena.regions[key].outcome()
        self.context.settle()
        return True

    def verify(self, blocks: int) -> GraphedRound | None:
        """The round by the bucket that held the last trees, once more by a larger one where this tree has more."""
        bucket = bucket_for(min(max(self.sizes), self.state.nodes))
        while bucket is not None:
            region = self.round_region(bucket)
            if region is None:
                return None
            numbers = read_report(region.outcome())
            count, nodes = numbers[0], numbers[2]
            if count:
                self.sizes.append(nodes)
                return self.told(numbers, bucket, blocks)
            self.counts.again += 1
            bucket = bucket_for(nodes)
        return None

    def round_region(self, bucket: int) -> VerifyGraph | None:
        self.regions.follow(self.arena, self.cache, max(bucket, self.cells) + self.cells)
        key = ("round", bucket)
        if key not in self.arena.regions:
            held = self.held
            region = VerifyGraph(
                self.state, self.target, self.cache, bucket, held.draws, held.ends, self.config
            )
            if not self.regions.hold(self.arena, key, region, f"a round of {bucket} nodes"):
                return None
        region_held = self.arena.regions[key]
        assert isinstance(region_held, VerifyGraph)
        return region_held

    def told(self, numbers: list[int], bucket: int, blocks: int) -> GraphedRound:
        """A round's report as the host's values; the caches' own counts follow."""
        count, left, nodes, matched = numbers[:HEADER]
        sizes = [self.cells] * 3 + [bucket] * 5
        rows, at = [], HEADER
        for size in sizes:
            rows.append(numbers[at : at + size])
            at += size
        path, tokens, kept, choices, *tree_rows = rows
        paths = [
            numbers[at + row * self.cells : at + (row + 1) * self.cells] for row in range(max(blocks, 1))
        ]
        tree = tree_of(tree_rows, paths, nodes, matched)
        self.cache.catch_up(count)
        stopped = [self.selector.commit(token) for token in tokens[:count]][-1]
        result = VerifyResult(path[:count], tokens[:count], choices[:nodes], stopped)
        if self.drafts:
            self.context.queue(self.state.fed.pending[:count])
        features = self.state.fed.features[:left] if left else None
        self.left = Retained(tuple(choices[node] for node in kept[:left]), features)
        return GraphedRound(tree, result, blocks, self.left)


def read_report(report: Tensor) -> list[int]:
    """The round's only wait for the device: one copy to pinned memory."""
    if report.device.type != "cuda":
        return report.tolist()
    pinned = torch.empty(report.shape, dtype=report.dtype, pin_memory=True)
    pinned.copy_(report, non_blocking=True)
    torch.cuda.current_stream(report.device).synchronize()
    return pinned.tolist()
