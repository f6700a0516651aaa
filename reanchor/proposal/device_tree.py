"""Tree building, greedy acceptance and retention on the device: the rules of this room with fixed shapes and without
a value read on the host, so that a captured graph may hold them. It knows no model.

Every inserted path is a row of cells, cell h holding the token at depth h. Two cells are one node when their rows agree
up to there; the first row that has the node owns it, and nodes are numbered row by row, which is the order in which the
host inserts them. Letters as in `core.py`; P rows (baseline, then a shifted block each), L = 2K + 1 cells a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reanchor.config import Attach, Retention
from reanchor.core import ROOT, Tree

ATTACH: tuple[Attach, ...] = ("earliest", "fixed")  # the rules there are; the others are the host's


@dataclass(frozen=True)
class DeviceTree:
    """A tree padded to N nodes; a padding node holds the anchor's token and sees nothing but itself."""

    tokens: Tensor  # [N] int64
    parents: Tensor  # [N] int64; -1 for the root and for padding
    depths: Tensor  # [N] int32
    origins: Tensor  # [N] int64
    words: Tensor  # [N, ceil(N/32)] int32; bit u % 32 of word u // 32: node v sees node u
    branches: Tensor  # [N, L] int64; nodes from the root to v, then v again and again
    paths: Tensor  # [P, L] int64; inserted paths as nodes, -1 behind their end
    count: Tensor  # [1] int64; nodes that are no padding
    matched: Tensor  # [1] int64; shifted blocks that found a place


@dataclass(frozen=True)
class DeviceVerifyResult:
    """What the target accepted. Entries from `count` on are no part of it."""

    path: Tensor  # [L] int64; the root and the accepted nodes, then r at entry r
    tokens: Tensor  # [L] int64; the token committed after each node of the path
    count: Tensor  # [1] int64


def assemble_on_device(
    blocks: Tensor, lengths: Tensor, max_depth: Tensor, nodes: int, attach: Attach = "earliest"
) -> DeviceTree:
    """The tree of at most `nodes` nodes that `assembly.assemble` builds.

    blocks: [P, K+1], row d the block of offset d; lengths: [P], tokens of each that count, 0 for a block that is not
    there; max_depth: [1], the deepest node worth verifying.
    """
    if attach not in ATTACH:
        raise ValueError(f"attach={attach!r} is the host's; on the device there are {', '.join(ATTACH)}")
    tokens, exists, placed = lay_out(blocks, lengths, max_depth, attach)
    rows, cells = tokens.shape
    row = torch.arange(rows, device=blocks.device)[:, None].expand(rows, cells)
    depth = torch.arange(cells, device=blocks.device).expand(rows, cells)

    agree = (tokens[:, None] == tokens[None]) & exists[:, None] & exists[None]  # [P, P, L]
    agree = agree.long().cumprod(-1).bool()
    owner = torch.where(agree, row[None], rows - 1).amin(1)  # [P, L]
    new = exists & (owner == row)
    number = new.flatten().long().cumsum(0).view(rows, cells) - 1
    node = number.gather(0, owner)  # [P, L]
    paths = torch.where(exists & (node < nodes), node, -1)

    slot = torch.where(
        new & (number < nodes), number, nodes
    ).flatten()  # what has no place goes to a place too many
    count = (slot < nodes).sum().view(1)

    def at_nodes(values: Tensor, padding: Tensor) -> Tensor:
        return padding.expand(nodes + 1).clone().scatter(0, slot, values.flatten())[:nodes]

    zero = torch.zeros((), dtype=torch.long, device=blocks.device)
    depths, owners = at_nodes(depth, zero), at_nodes(row, zero)
    itself = torch.arange(nodes, device=blocks.device)
    branches = torch.where(depth[:1] <= depths[:, None], paths[owners], itself[:, None])  # [N, L]
    branches = torch.where((itself < count)[:, None], branches, itself[:, None])
    above = branches.gather(1, (depths - 1).clamp(min=0)[:, None])[:, 0]
    return DeviceTree(
        tokens=at_nodes(tokens, blocks[0, 0]),
        parents=torch.where(depths > 0, above, -1),
        depths=depths.int(),
        origins=torch.where(itself > 0, owners, ROOT),
        words=pack(torch.zeros_like(above[:, None].expand(nodes, nodes)).scatter(1, branches, 1)),
        branches=branches,
        paths=paths,
        count=count,
        matched=placed[1:].sum().view(1),
    )


def lay_out(
    blocks: Tensor, lengths: Tensor, max_depth: Tensor, attach: Attach
) -> tuple[Tensor, Tensor, Tensor]:
    """Each block's path from the root: tokens [P, L], which cells exist [P, L], which blocks found a place [P]."""
    rows, width = blocks.shape
    offset = torch.arange(rows, device=blocks.device)
    place = torch.arange(width, device=blocks.device)
    fits = (blocks[:, :1] == blocks[:1]) & (place < lengths[:1])  # [P, K+1]
    if attach == "fixed":
        fits = fits & (place == offset[:, None])
    site = torch.where(fits, place, width).amin(1)  # [P]
    placed = (site < width) & (lengths > 0)
    site = torch.where(offset == 0, 0, site)[:, None]
    placed = placed | (offset == 0)

    depth = torch.arange(2 * width - 1, device=blocks.device).expand(rows, -1)
    own = blocks.gather(1, (depth - site).clamp(0, width - 1))
    before = blocks[:1].expand(rows, -1).gather(1, depth.clamp(max=width - 1))
    exists = placed[:, None] & (depth < site + lengths[:, None]) & (depth <= max_depth)
    return torch.where(depth < site, before, own), exists, placed


def pack(sees: Tensor) -> Tensor:
    """[N, N] of 0 and 1 to words [N, ceil(N/32)] int32."""
    count = sees.shape[1]
    words = -(-count // 32)
    bits = torch.nn.functional.pad(sees, (0, 32 * words - count)).view(-1, words, 32)
    packed = (bits << torch.arange(32, device=sees.device)).sum(-1)
    return (packed - ((packed >> 31) << 32)).int()  # the highest bit is the sign


def accept_on_device(tree: DeviceTree, choices: Tensor) -> DeviceVerifyResult:
    """The walk of `verification.verify` for choices already made. choices: [N], the target's token at every node"""
    cells = tree.branches.shape[1]
    step = torch.arange(cells, device=choices.device)
    kept = tree.tokens[tree.branches[:, 1:]] == choices[tree.branches[:, :-1]]  # [N, L-1]
    kept = kept | (step[1:] > tree.depths[:, None])
    real = torch.arange(len(choices), device=choices.device) < tree.count
    reached = torch.where(real & kept.all(1), tree.depths, -1)
    last = reached.argmax().view(1)  # siblings differ in their token, so the nodes reached are one chain
    count = tree.depths[last].long() + 1
    path = torch.where(step < count, tree.branches[last][0], step)
    return DeviceVerifyResult(path, choices[path.clamp(max=len(choices) - 1)], count)


def rejected_on_device(
    tree: DeviceTree, result: DeviceVerifyResult, retention: Retention = "first"
) -> tuple[Tensor, Tensor]:
    """What `retention.rejected_path` gives: nodes [L], those from `count` on being 0, and their count [1]."""
    rows, cells = tree.paths.shape
    last = result.path.gather(0, result.count - 1)
    here = tree.paths.gather(1, (result.count - 1).expand(rows, 1))[:, 0]  # [P]
    length = (tree.paths >= 0).sum(1)
    beyond = torch.where((here == last) & (length > result.count), length, 0)
    if retention == "first":
        beyond = (beyond > 0).long()
    order = torch.arange(rows, device=beyond.device)
    chosen = torch.where(beyond == beyond.amax(), order, rows).amin().view(1)
    count = torch.where(beyond.amax() > 0, length[chosen] - result.count, 0)
    step = torch.arange(cells, device=beyond.device)
    nodes = tree.paths[chosen][0].gather(0, (step + result.count).clamp(max=cells - 1))
    return torch.where(step < count, nodes, 0), count


def end_at(result: DeviceVerifyResult, ends: Tensor) -> DeviceVerifyResult:
    """The result up to its first token that ends decoding. ends: [E]"""
    step = torch.arange(len(result.path), device=ends.device)
    ended = (result.tokens[:, None] == ends).any(1) & (step < result.count)
    first = torch.where(ended, step, len(step)).amin().view(1)
    count = torch.minimum(result.count, first + 1)
    return DeviceVerifyResult(torch.where(step < count, result.path, step), result.tokens, count)


def path_prefix(tree: DeviceTree, nodes: int) -> DeviceTree:
    """Its first nodes: the whole tree where `count` is no more."""
    words = tree.words[:nodes, : -(-nodes // 32)]
    rows = (tree.tokens, tree.parents, tree.depths, tree.origins)
    tokens, parents, depths, origins = (each[:nodes] for each in rows)
    branches = tree.branches[:nodes]
    return DeviceTree(tokens, parents, depths, origins, words, branches, tree.paths, tree.count, tree.matched)


def to_host(tree: DeviceTree) -> Tree:
    """The same tree as the host's room would have frozen it; this one waits for the device."""
    rows = (tree.tokens, tree.parents, tree.depths, tree.origins)
    return tree_of([each.tolist() for each in rows], tree.paths.tolist(), int(tree.count), int(tree.matched))


def tree_of(rows: Sequence[list[int]], padded: Sequence[list[int]], count: int, matched: int) -> Tree:
    """A tree of a device's numbers. rows: tokens, parents, depths and origins, each [N]; padded: paths as there"""
    tokens, parents, depths, origins = (row[:count] for row in rows)
    paths = [[node for node in row if node >= 0] for row in padded]
    children = {
        (parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))
    }
    del children[-1, tokens[0]]
    return Tree(tokens, parents, depths, origins, [path for path in paths if path], matched, children)
