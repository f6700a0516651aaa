"""The frozen target as training sees it: features of a recorded text, and its result on drafted branches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from reanchor.core import ROOT, Tree
from reanchor.target import Target, TargetOutput
from reanchor.training.responses import Response


class FeatureStore:
    """`folder` keeps features once computed; they are read back for the same text and layers only."""

    def __init__(self, target: Target, folder: Path | None = None) -> None:
        self.target, self.folder = target, folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    @torch.no_grad()
    def features(self, response: Response) -> Tensor:
        """[L, Dc] of the whole sequence; [L - 1, Dc] where they were kept as it was generated, when nothing read its
        last token. No block that fits into the sequence reads that row.
        """
        place = self.place(response)
        if place is not None and place.exists():
            try:
                return load_file(place)["features"].to(self.target.device)
            except (OSError, SafetensorError, KeyError) as error:
                raise ValueError(
                    f"cannot read the features {str(place)!r} ({error}): remove the file"
                ) from None
        ids = torch.tensor(response.ids, device=self.target.device)
        features = self.target.prefill(ids, self.target.new_cache()).features
        self.keep(response, features)
        return features

    def keep(self, response: Response, features: Tensor) -> None:
        """Write features down, where a folder keeps them; ValueError when it has no room."""
        place = self.place(response)
        if place is None:
            return
        part = place.with_suffix(".part")
        try:
            save_file({"features": features.contiguous()}, part)
        except (OSError, SafetensorError) as error:
            part.unlink(missing_ok=True)
            raise ValueError(
                f"cannot keep features in {str(self.folder)!r} ({error}): free some space, or leave --features out"
            ) from error
        part.replace(place)

    def place(self, response: Response) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.key(response)}.safetensors"

    def key(self, response: Response) -> str:
        text = f"{self.target.tap_layers} {self.target.model.dtype} {response.ids}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @torch.no_grad()
    def judge(self, response: Response, tree: Tree) -> TargetOutput:
        """Logits and features of every node of a tree that starts at the response's first token."""
        cache = self.target.new_cache()
        self.target.prefill(torch.tensor(response.prompt_ids, device=self.target.device), cache)
        return self.target.verify(tree, cache)


@dataclass(frozen=True)
class Branches:
    """The recorded response as a chain, and one branch a draft; equal prefixes are the same nodes."""

    tree: Tree
    roots: list[int]  # [A] the anchors' nodes
    paths: list[list[int]]  # [A][K] the drafts' nodes

    def accepted(self, choices: Sequence[int]) -> list[int]:
        """Drafts of each branch that the target would have chosen itself. choices: [N]"""
        counts = []
        for root, path in zip(self.roots, self.paths, strict=True):
            nodes = [root, *path]
            agree = [
                choices[before] == self.tree.tokens[node] for before, node in zip(nodes, path, strict=False)
            ]
            counts.append(agree.index(False) if False in agree else len(agree))
        return counts


def grow(response: Response, anchors: Sequence[int], drafts: Sequence[Sequence[int]]) -> Branches:
    """anchors: [A] positions in the whole sequence; drafts: [A][K]"""
    tokens = list(response.response_ids)
    parents, depths = list(range(-1, len(tokens) - 1)), list(range(len(tokens)))
    children = {(node, token): node + 1 for node, token in enumerate(tokens[1:])}
    roots, paths = [anchor - len(response.prompt_ids) for anchor in anchors], []
    for root, draft in zip(roots, drafts, strict=True):
        node, path = root, []
        for token in draft:
            if (node, token) not in children:
                children[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
                depths.append(depths[node] + 1)
            node = children[node, token]
            path.append(node)
        paths.append(path)
    tree = Tree(tokens, parents, depths, [ROOT] * len(tokens), [], children=children)
    return Branches(tree, roots, paths)
