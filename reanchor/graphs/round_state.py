"""State that one round leaves for the next on the device, in buffers that never move."""

from __future__ import annotations

import torch
from torch import Tensor

from reanchor.core import ROOT, Retained
from reanchor.drafters.static_draft import DraftInputs
from reanchor.proposal.device_tree import DeviceTree, pack


class RoundState:
    """Buffers of one decode at a time. W cells: the longest path a round can accept, its root included."""

    def __init__(self, cells: int, nodes: int, features: Tensor) -> None:
        """nodes: of the largest bucket; features: [any, Dc], of the kind that will come."""
        device = features.device

        def numbers(*shape: int, fill: int = 0, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.full(shape, fill, dtype=dtype, device=device)

        self.cells, self.nodes = cells, nodes
        self.depth = numbers(1)  # the deepest node worth verifying: tokens still allowed less the bonus
        rows = features.new_zeros(2, cells, features.shape[1])
        self.fed = DraftInputs(numbers(1), numbers(1), rows[0], numbers(cells), rows[1])
        itself = torch.arange(nodes, device=device)
        paths = numbers(cells, cells, fill=-1)
        paths[0, 0] = 0
        self.tree = DeviceTree(  # of the anchor alone
            tokens=numbers(nodes),
            parents=numbers(nodes, fill=-1),
            depths=numbers(nodes, dtype=torch.int32),
            origins=numbers(nodes, fill=ROOT),
            words=pack(torch.eye(nodes, dtype=torch.long, device=device)),
            branches=itself[:, None].repeat(1, cells),
            paths=paths,
            count=numbers(1, fill=1),
            matched=numbers(1),
        )

    def load(self, anchor: int, retained: Retained, pending: list[Tensor], room: int) -> None:
        """What a round on the host's path left, or the prefill."""
        self.fed.anchor.fill_(anchor)
        self.tree.tokens.fill_(anchor)
        self.depth.fill_(room - 1)
        rows = sum(len(each) for each in pending)
        self.fed.waiting.fill_(rows)
        if rows:
            self.fed.pending[:rows] = torch.cat(pending)
        if retained.features is not None:
            self.fed.tokens[: len(retained)] = torch.tensor(retained.tokens, device=self.depth.device)
            self.fed.features[: len(retained)] = retained.features

    def grow(self, tree: DeviceTree) -> None:
        """The round's tree, of no more nodes than the buffers have; its paths are no more than W."""
        nodes, words = tree.words.shape
        for name in ("tokens", "parents", "depths", "origins", "branches"):
            getattr(self.tree, name)[:nodes] = getattr(tree, name)
        self.tree.words[:nodes, :words] = tree.words
        self.tree.paths.fill_(-1)
        self.tree.paths[: len(tree.paths)] = tree.paths
        self.tree.count.copy_(tree.count)
        self.tree.matched.copy_(tree.matched)

    def changed(self) -> list[Tensor]:
        """What rounds write here."""
        fed = self.fed
        return [self.depth, self.tree.tokens, fed.anchor, fed.waiting, fed.pending, fed.tokens, fed.features]
