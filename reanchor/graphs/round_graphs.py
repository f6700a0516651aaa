"""The two regions of a round: the draft with its tree, and the target's pass with all that follows it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reanchor.cache import TreeCache
from reanchor.config import DecodeConfig
from reanchor.drafters.static_draft import StaticShapeDraft
from reanchor.fused.fused_target import FusedTarget
from reanchor.fused.graph_runner import CapturedGraph, GraphCallable
from reanchor.graphs.device_selector import DeviceSelector
from reanchor.graphs.round_state import RoundState
from reanchor.methods import METHODS
from reanchor.proposal.device_tree import (
    DeviceTree,
    DeviceVerifyResult,
    accept_on_device,
    assemble_on_device,
    end_at,
    path_prefix,
    rejected_on_device,
)

HEADER = 4  # numbers of a report before its rows


class DraftGraph(CapturedGraph):
    """So many blocks, and the tree they make."""

    def __init__(self, state: RoundState, draft: StaticShapeDraft, nodes: int, config: DecodeConfig) -> None:
        self.state, self.draft, self.nodes, self.config = state, draft, nodes, config  # nodes: most of a tree

    def run(self) -> None:
        blocks, lengths = self.draft.run(self.state.fed)
        self.state.grow(
            assemble_on_device(blocks, lengths, self.state.depth, self.nodes, self.config.rules.attach)
        )

    def changes(self) -> Sequence[Tensor]:
        return [self.draft.projected]


class VerifyGraph(CapturedGraph):
    """The pass over a bucket of nodes, the target's choices, the walk, the commit and what the next round reads.

    A tree of more nodes than the bucket commits nothing, and its report says so.
    """

    def __init__(
        self,
        state: RoundState,
        target: FusedTarget,
        cache: TreeCache,
        bucket: int,
        draws: DeviceSelector,
        ends: Tensor,
        config: DecodeConfig,
    ) -> None:
        self.state, self.draws, self.ends, self.config = state, draws, ends, config
        self.buffers, self.length = list(cache.buffers.values()), cache.device_length()
        self.passed = GraphCallable(target, cache, bucket)

    def run(self) -> Tensor:
        """The report: everything that the host wants to know of the round, in one tensor."""
        bucket = self.passed.bucket
        tree = path_prefix(self.state.tree, bucket)
        logits, features = self.passed.over(tree.tokens, tree.depths, tree.words)
        choices = self.draws.pick(logits)  # [bucket]
        fits = tree.count <= bucket
        result = end_at(accept_on_device(tree, choices), self.ends)
        step = torch.arange(len(result.path), device=choices.device)
        kept = DeviceVerifyResult(
            torch.where(fits, result.path, step), result.tokens, torch.where(fits, result.count, 0)
        )
        self.commit(kept)
        nodes, left = self.retained(tree, result)
        report = self.report(tree, kept, choices, nodes, left)
        self.hand_over(kept, choices, features, nodes.clamp(max=bucket - 1), fits)
        return report

    def commit(self, kept: DeviceVerifyResult) -> None:
        """`TreeCache.commit_on_device`, on the buffers that this region holds."""
        target = self.length + torch.arange(len(kept.path), device=self.length.device)
        for buffer in self.buffers:
            buffer.index_copy_(4, target, buffer.index_select(4, self.length + kept.path))
        self.length += kept.count

    def retained(self, tree: DeviceTree, result: DeviceVerifyResult) -> tuple[Tensor, Tensor]:
        if METHODS[self.config.method or "plain"].retains:
            return rejected_on_device(tree, result, self.config.rules.retention)
        return torch.zeros_like(result.path), torch.zeros_like(result.count)

    def report(
        self, tree: DeviceTree, kept: DeviceVerifyResult, choices: Tensor, nodes: Tensor, left: Tensor
    ) -> Tensor:
        header = [kept.count, left, tree.count, tree.matched]
        rows = [kept.path, kept.tokens, nodes, choices, tree.tokens, tree.parents, tree.depths, tree.origins]
        return torch.cat([each.flatten().int() for each in (*header, *rows, tree.paths)])

    def hand_over(
        self, kept: DeviceVerifyResult, choices: Tensor, features: Tensor, nodes: Tensor, fits: Tensor
    ) -> None:
        """The next round's anchor, the committed features for the drafter, and the retained states."""
        state, fed = self.state, self.state.fed
        last = kept.tokens.gather(0, (kept.count - 1).clamp(min=0))
        fed.anchor.copy_(torch.where(fits, last, fed.anchor))
        if state.nodes == 1:  # the tree of an anchor alone is the next one already
            state.tree.tokens.copy_(fed.anchor)
        state.depth.sub_(kept.count)
        fed.waiting.copy_(kept.count)
        fed.pending.copy_(features.index_select(0, kept.path.clamp(max=len(features) - 1)))
        fed.tokens.copy_(choices.index_select(0, nodes))
        fed.features.copy_(features.index_select(0, nodes))

    def changes(self) -> Sequence[Tensor]:
        return [self.length, *self.state.changed()]

    def generators(self) -> Sequence[torch.Generator]:
        return [] if self.draws.generator is None else [self.draws.generator]
