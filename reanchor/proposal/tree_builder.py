"""A tree of token paths under a node budget, that freezes to a Tree."""

from __future__ import annotations

from reanchor.core import ROOT, Tree


class TreeBuilder:
    """Paths merged by (parent, token), in insertion order; a path is cut where the budget ends."""

    def __init__(self, anchor: int, max_nodes: int | None = None, max_depth: int | None = None) -> None:
        self.tokens, self.parents, self.depths, self.origins = [anchor], [-1], [0], [ROOT]
        self.children: dict[tuple[int, int], int] = {}
        self.paths: list[list[int]] = []
        self.max_nodes, self.max_depth = max_nodes, max_depth

    def insert(self, path: list[int], origin: int) -> None:
        """Add a path that starts with the anchor; its new nodes are of `origin`."""
        assert path[0] == self.tokens[0], "a path starts at the anchor"
        nodes = [0]
        for token in path[1:] if self.max_depth is None else path[1 : self.max_depth + 1]:
            node = self.children.get((nodes[-1], token))
            if node is None:
                if self.max_nodes is not None and len(self.tokens) >= self.max_nodes:
                    break
                node = self.add(nodes[-1], token, origin)
            nodes.append(node)
        self.paths.append(nodes)

    def add(self, parent: int, token: int, origin: int) -> int:
        """A new node, whatever the budget; the caller knows that the parent has no child of this token."""
        node = len(self.tokens)
        self.children[parent, token] = node
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.origins.append(origin)
        return node

    def cut(self, nodes: int) -> None:
        """Keep the first nodes only; paths are not kept up."""
        for node in range(nodes, len(self.tokens)):
            del self.children[self.parents[node], self.tokens[node]]
        for values in (self.tokens, self.parents, self.depths, self.origins):
            del values[nodes:]

    def freeze(self, matched: int = 0, values: list[float] | None = None) -> Tree:
        return Tree(
            self.tokens,
            self.parents,
            self.depths,
            self.origins,
            self.paths,
            matched,
            self.children,
            values or [],
        )
