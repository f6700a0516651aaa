"""What rejected states do for a Carryover drafter, measured at the anchors of its own decodes.

Recall of the target's tokens with and without them, how far the rejected branch foretold what was written, and how
much attention they get (paper, 5.1, 5.2, appendices B to E).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reanchor.drafters.block import BlockDrafter
from reanchor.training.observation import ObservedDecode, candidates
from reanchor.training.packed import block_states

TOP = 16
STATISTICS = ("states", "consecutive", "agreement", "R")  # of a rejected round
CORRELATION = "correlation with gain"
Rows = list[dict[str, Any]]


def recall(seen: Sequence[ObservedDecode], drafter: BlockDrafter, baseline: BlockDrafter | None) -> Rows:
    """Recall@1 and @16 by draft position, over rounds that carry-over-on (and the baseline) got right so far."""
    hits: dict[tuple[int, str], list[tuple[bool, bool]]] = defaultdict(list)
    for each in seen:
        truth = each.truth(drafter.proposals)
        found = {"on": candidates(drafter, each, True, TOP), "off": candidates(drafter, each, False, TOP)}
        if baseline is not None:
            found["baseline"] = candidates(baseline, each, False, TOP)
        first = {name: tokens[..., 0] == truth for name, tokens in found.items()}  # [A, K]
        right = first["on"] & first["baseline"] if baseline is not None else first["on"]
        so_far = torch.cat([torch.ones_like(right[:, :1]), right[:, :-1].long().cumprod(1).bool()], dim=1)
        for name, tokens in found.items():
            among = (tokens == truth[..., None]).any(-1)
            for block, slot in so_far.nonzero().tolist():
                hits[slot, name].append((bool(first[name][block, slot]), bool(among[block, slot])))
    return [
        {"position": slot, "variant": name, "rounds": len(some)}
        | share("recall_1", [one for one, _ in some])
        | share("recall_16", [all_ for _, all_ in some])
        for (slot, name), some in sorted(hits.items())
    ]


def share(name: str, values: Sequence[bool]) -> dict[str, float]:
    """A share and the half-width of its 95 % interval, by the normal approximation."""
    mean = sum(values) / len(values)
    return {name: mean, f"{name}_error": 1.96 * math.sqrt(mean * (1 - mean) / len(values))}


def reconvergence(tokens: Sequence[int], written: Sequence[int]) -> int:
    """R: predictions along the rejected branch that the text confirms, a place to either side allowed."""
    return sum(
        any(0 <= q + shift < len(tokens) and tokens[q + shift] == word for shift in (-1, 0, 1))
        for q, word in enumerate(written[: len(tokens)])
    )


def rejected_rounds(seen: Sequence[ObservedDecode], drafter: BlockDrafter) -> Rows:
    """One row a round that had rejected states: their number, the drafts after the rejected one that the target
    agreed with (without a break, and at all), R, and the local gain.
    """
    rows: Rows = []
    for each in seen:
        accepted = {}
        for name, carried in (("on", True), ("off", False)):
            right = candidates(drafter, each, carried, 1)[..., 0] == each.truth(drafter.proposals)
            accepted[name] = right.long().cumprod(1).sum(1).tolist()
        text = each.ids.tolist()
        for block, place in enumerate(each.whole):
            now, before = each.rounds[place], each.rounds[place - 1]
            if not place or not now.retained:
                continue
            tokens, after = now.retained.tokens, now.position + 1
            drafted = before.block[after - before.position :]
            agreed = [one == other for one, other in zip(drafted, tokens, strict=False)]
            rows.append(
                {
                    "states": len(tokens),
                    "consecutive": agreed.index(False) if False in agreed else len(agreed),
                    "agreement": sum(agreed),
                    "R": reconvergence(tokens, text[after : after + len(tokens)]),
                    "gain": accepted["on"][block] - accepted["off"][block],
                }
            )
    return rows


def ceiling(seen: Sequence[ObservedDecode], drafter: BlockDrafter) -> Rows:
    """What the rejected branch could add at best: how often the drafter without it, the branch (the target's own token
    at that position, after the wrong ones) and either of them is right, over the rejected rounds that the drafter
    got right so far. The last row multiplies up to acceptance lengths.
    """
    hits: dict[int, list[tuple[bool, bool]]] = defaultdict(list)
    for each in seen:
        truth = each.truth(drafter.proposals)
        right = candidates(drafter, each, False, 1)[..., 0] == truth
        for own, words, place in zip(right.tolist(), truth.tolist(), each.whole, strict=True):
            said = each.rounds[place].retained.tokens
            for slot in range(len(words) if said else 0):
                hits[slot].append((own[slot], slot < len(said) and said[slot] == words[slot]))
                if not own[slot]:
                    break
    rows: Rows = []
    lengths, chances = {"drafter": 1.0, "either": 1.0}, {"drafter": 1.0, "either": 1.0}
    for slot, found in sorted(hits.items()):
        shares = {
            "drafter": sum(own for own, _ in found) / len(found),
            "branch": sum(branch for _, branch in found) / len(found),
            "either": sum(own or branch for own, branch in found) / len(found),
        }
        rows.append({"position": slot, "rounds": len(found), **shares})
        for name in lengths:
            chances[name] *= shares[name]
            lengths[name] += chances[name]
    if rows:
        rows.append({"position": "tokens a round", "rounds": rows[0]["rounds"], "branch": None, **lengths})
    return rows


def by_reconvergence(rounds: Rows) -> Rows:
    """Mean local gain by R, and what else the rounds of that R have."""
    groups: dict[int, Rows] = defaultdict(list)
    for each in rounds:
        groups[each["R"]].append(each)
    return [
        {"R": value, "rounds": len(group)}
        | {name: sum(each[name] for each in group) / len(group) for name in ("gain", *STATISTICS[:-1])}
        for value, group in sorted(groups.items())
    ]


def means(rounds: Mapping[str, Rows]) -> Rows:
    """One row a dataset that has rejected rounds."""
    return [
        {"dataset": dataset, "rounds": len(rows)}
        | {name: sum(each[name] for each in rows) / len(rows) for name in (*STATISTICS, "gain")}
        for dataset, rows in rounds.items()
        if rows
    ]


def by_dataset(rounds: Mapping[str, Rows]) -> Rows:
    """Means of every dataset's rejected rounds, and how each statistic goes with the local gain across them."""
    return with_correlation(means(rounds))


def normalised(rounds: Mapping[str, Rows], taus: Mapping[str, tuple[float, float]]) -> Rows:
    """The statistics over the baseline's acceptance length, beside what Carryover adds to it (D, E).

    taus: of the baseline and of the drafter
    """
    table: Rows = []
    for row in means(rounds):
        before, after = taus[row["dataset"]]
        table.append(
            {"dataset": row["dataset"], "rounds": row["rounds"], "baseline": before, "carryover": after}
            | {name: row[name] / before for name in STATISTICS}
            | {"gain": after / before - 1}
        )
    return with_correlation(table)


def with_correlation(table: Rows) -> Rows:
    """The table with a row of how its statistics go with its gains, from three datasets on."""
    if len(table) < 3:
        return table
    gains = torch.tensor([row["gain"] for row in table], dtype=torch.float64)
    row: dict[str, Any] = dict.fromkeys(table[0])
    row |= {"dataset": CORRELATION, "rounds": sum(each["rounds"] for each in table)}
    for name in (*STATISTICS, "gain"):
        values = torch.tensor([each[name] for each in table], dtype=torch.float64)
        found = float(torch.corrcoef(torch.stack([values, gains]))[0, 1])
        row[name] = found if math.isfinite(found) else None  # what never varies goes with nothing
    return [*table, row]


def attention(seen: Sequence[ObservedDecode], drafter: BlockDrafter) -> Rows:
    """Share of a slot's attention that carried rows get, by their number, averaged over heads and rounds."""
    shares: dict[tuple[int, int], list[float]] = defaultdict(list)
    for each in seen:
        size, rows = drafter.block_size, len(each.carried.owners)
        if not rows:
            continue
        counts = torch.bincount(each.carried.owners, minlength=len(each.anchors)).tolist()
        for layer, weights in enumerate(attended(drafter, each)):  # [S, heads, T]
            slots = len(each.anchors) * size
            mass = weights[..., -slots - rows : -slots].sum(-1).mean(1).view(-1, size).mean(1)  # [A]
            for count, value in zip(counts, mass.tolist(), strict=True):
                if count:
                    shares[layer, count].append(value)
    layers = sorted({layer for layer, _ in shares})
    table: Rows = []
    if not layers:
        return table
    for count in [*sorted({count for _, count in shares}), None]:
        found = {
            layer: [
                value
                for (at, n), some in shares.items()
                if at == layer and count in (None, n)
                for value in some
            ]
            for layer in layers
        }
        row: dict[str, Any] = {"states": "all" if count is None else count, "rounds": len(found[layers[0]])}
        row |= {f"layer_{layer}": sum(some) / len(some) for layer, some in found.items()}
        row["mass"] = sum(row[f"layer_{layer}"] for layer in layers) / len(layers)
        table.append(row)
    return table


@torch.no_grad()
def attended(drafter: BlockDrafter, seen: ObservedDecode) -> list[Tensor]:
    """Attention weights of every layer in one packed pass, [S, heads, T] each."""
    found: list[Tensor] = []
    block_states(drafter, seen.ids, seen.features, seen.anchors, seen.carried, watch=found.append)
    return found
