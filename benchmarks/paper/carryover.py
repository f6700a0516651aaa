"""Diagnostics of the Carryover paper: a drafter that reads rejected states, at the anchors of its own greedy decodes.

recall         recall@1 and recall@16 of the target's tokens by draft position, with rejected states, without them, and
               of --baseline; over blocks that the drafter with them (and the baseline) got right so far (5.1)
reconvergence  rejected rounds by R, the tokens of the rejected branch that the text confirms within one place, with
               the local gain, drafts accepted with less without rejected states; means by dataset; and a bound of
               what the branch could add: whenever it or the drafter is right (5.2, appendices B to D)
attention      share of the draft slots' attention that rejected states get, by their number (appendix E)
carried        acceptance length of chains that carry over nothing, bare states, or states with the embedding

    python benchmarks/paper/carryover.py recall --drafter carryover/drafter --baseline demo --limit 5 --json
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.benchmark.conversation import Conversation
from reanchor.chat import thinking_option, thinking_switch
from reanchor.core import Draft, Retained
from reanchor.datasets import load_file, load_set
from reanchor.drafters.base import Drafter, WrappedDrafter
from reanchor.drafters.load import load_drafter
from reanchor.loading import load_target
from reanchor.target import end_ids
from reanchor.training.packed import CarryoverRows, MaskedAttention, block_states

TOP = 16
CARRIED = ("nothing", "states", "states with embedding")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ObservedRound:
    position: int  # of the anchor
    block: tuple[int, ...]  # the anchor and the proposals
    retained: Retained


@dataclass(frozen=True)
class ObservedDecode:
    """A whole text, and the rounds whose block lies in it to its end."""

    ids: Tensor  # [L]
    features: Tensor  # [L, Dc]
    rounds: list[ObservedRound]
    whole: list[int]  # places in `rounds`
    anchors: Tensor  # [A], of the whole ones
    carried: CarryoverRows

    def truth(self, proposals: int) -> Tensor:
        """[A, K] what the target wrote after each anchor."""
        return self.ids[self.anchors[:, None] + 1 + torch.arange(proposals, device=self.ids.device)]


class ObservingDrafter(WrappedDrafter):
    """A drafter that keeps what it was asked and what it answered."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.rounds: list[ObservedRound] = []

    def draft(
        self, anchor: int, retained: Retained, shifts: Any, cache: Any, *more: Any, **asked: Any
    ) -> Draft:
        position = len(cache)
        draft = super().draft(anchor, retained, shifts, cache, *more, **asked)
        self.rounds.append(ObservedRound(position, tuple(draft.blocks[0]), retained))
        return draft


def observe(model: Any, drafter: Any, prompt: Sequence[int], new_tokens: int) -> ObservedDecode | None:
    """A greedy decode with carried rows on; None when no block lies in it to its end."""
    watcher = ObservingDrafter(drafter)
    decoder = SpeculativeDecoder(model, watcher, DecodeConfig("dflash", carryover=True))
    steps = decoder.decode(list(prompt), SamplingConfig(new_tokens), end_ids=end_ids(model))
    text = [*prompt, *(token for step in steps for token in step.tokens)]
    ids = torch.tensor(text, device=decoder.target.device)
    features = decoder.target.prefill(ids, decoder.target.new_cache()).features
    rounds = watcher.rounds
    whole = [place for place, each in enumerate(rounds) if each.position + drafter.proposals < len(text)]
    if not whole:
        return None
    owners, positions = [], []
    for block, place in enumerate(whole):
        count = len(rounds[place].retained)
        owners += [block] * count
        positions += range(rounds[place].position, rounds[place].position + count)
    rows = [rounds[place].retained.features for place in whole]
    carried = CarryoverRows(
        torch.cat([features[:0], *(each for each in rows if each is not None)]),
        torch.tensor(owners, device=ids.device, dtype=torch.long),
        torch.tensor(positions, device=ids.device, dtype=torch.long),
    )
    anchors = torch.tensor([rounds[place].position for place in whole], device=ids.device)
    return ObservedDecode(ids, features, rounds, whole, anchors, carried)


@torch.no_grad()
def candidates(drafter: Any, seen: ObservedDecode, carried: bool, count: int) -> Tensor:
    """[A, K, count] best tokens of every slot, each after the block's own tokens before it."""
    rows = seen.carried if carried else None
    hidden = block_states(drafter, seen.ids, seen.features, seen.anchors, rows)
    proposal = drafter.propose(hidden, seen.ids[seen.anchors])
    best = proposal.scores.float().topk(min(count, proposal.scores.shape[-1])).indices
    return drafter.target_ids(best) if proposal.ids is None else proposal.ids.gather(-1, best)


def recall(seen: Iterable[ObservedDecode], drafter: Any, baseline: Any = None) -> Rows:
    """One row a draft position and variant; errors are half-widths of 95 % intervals, by the normal approximation."""
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
    rows: Rows = []
    for (slot, name), some in sorted(hits.items()):
        rows.append({"position": slot, "variant": name, "rounds": len(some)})
        for measure, values in zip(("recall_1", "recall_16"), zip(*some, strict=True), strict=True):
            mean = sum(values) / len(values)
            error = 1.96 * math.sqrt(mean * (1 - mean) / len(values))
            rows[-1] |= {measure: mean, f"{measure}_error": error}
    return rows


def reconverged(tokens: Sequence[int], written: Sequence[int]) -> int:
    """R: predictions along the rejected branch that the text confirms, a place to either side allowed."""
    return sum(word in tokens[max(0, q - 1) : q + 2] for q, word in enumerate(written[: len(tokens)]))


def rejected_rounds(seen: Iterable[ObservedDecode], drafter: Any) -> Rows:
    """One row a round that had rejected states: their number, the drafts after the rejected one that the target
    agreed with (without a break, and at all), R, and the local gain.
    """
    rows: Rows = []
    for each in seen:
        on, off = (
            (candidates(drafter, each, carried, 1)[..., 0] == each.truth(drafter.proposals)).long().cumprod(1)
            for carried in (True, False)
        )
        gains = (on - off).sum(1).tolist()
        for gain, place in zip(gains, each.whole, strict=True):
            now, before = each.rounds[place], each.rounds[place - 1]
            if not place or not now.retained:
                continue
            tokens, after = now.retained.tokens, now.position + 1
            drafted = before.block[after - before.position :]
            agreed = [one == other for one, other in zip(drafted, tokens, strict=False)]
            rows.append(
                {
                    "states": len(tokens),
                    "consecutive": [*agreed, False].index(False),
                    "agreement": sum(agreed),
                    "R": reconverged(tokens, each.ids[after : after + len(tokens)].tolist()),
                    "gain": gain,
                }
            )
    return rows


def means(rounds: Rows, key: str) -> Rows:
    """Means of every figure over the rounds that share a value of `key`."""
    groups: dict[Any, Rows] = defaultdict(list)
    for each in rounds:
        groups[each[key]].append(each)
    return [
        {key: value, "rounds": len(group)}
        | {
            name: sum(each[name] for each in group) / len(group)
            for name in group[0]
            if name not in (key, "dataset")
        }
        for value, group in sorted(groups.items())
    ]


def bound(seen: Iterable[ObservedDecode], drafter: Any) -> Rows:
    """How often the drafter without rejected states, the branch (the target's own token at that position, after the
    wrong ones) and either of them is right, over the rejected rounds that the drafter got right so far. The last row
    multiplies up to acceptance lengths.
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


@contextmanager
def attention_weights() -> Iterator[list[Tensor]]:
    """While it lasts, the list is given every packed layer's attention weights: [S, heads, T]"""
    found: list[Tensor] = []
    attend = MaskedAttention.attend

    def watched(self: MaskedAttention, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        repeated = keys.repeat_interleave(queries.shape[1] // len(keys), 0)
        scores = (torch.einsum("shd,htd->sht", queries, repeated) * scale).float()
        found.append(scores.masked_fill(~self.visible[:, None], float("-inf")).softmax(-1))
        return attend(self, queries, keys, values, scale)

    MaskedAttention.attend = watched
    try:
        yield found
    finally:
        MaskedAttention.attend = attend


@torch.no_grad()
def attention(seen: Iterable[ObservedDecode], drafter: Any) -> Rows:
    """Averaged over heads, slots and rounds, by the number of rejected states."""
    rounds: Rows = []
    for each in seen:
        size, rows = drafter.block_size, len(each.carried.owners)
        if not rows:
            continue
        with attention_weights() as layers:
            block_states(drafter, each.ids, each.features, each.anchors, each.carried)
        slots = len(each.anchors) * size
        masses = [
            w[..., -slots - rows : -slots].sum(-1).mean(1).view(-1, size).mean(1).tolist() for w in layers
        ]
        counts = torch.bincount(each.carried.owners, minlength=len(each.anchors)).tolist()
        for count, *shares in zip(counts, *masses, strict=True):
            if count:
                by_layer = {f"layer_{layer}": share for layer, share in enumerate(shares)}
                rounds.append({"states": count, **by_layer, "mass": sum(shares) / len(shares)})
    return means(rounds, "states") + means([{**each, "states": "all"} for each in rounds], "states")


def acceptance_length(model: Any, drafter: Any, prompts: Any, new_tokens: int, carried: str) -> float:
    """Tokens a round of greedy chains that carry over one of CARRIED, over all rounds of all prompts."""
    decoder = SpeculativeDecoder(model, drafter, DecodeConfig("dflash", carryover=carried != "nothing"))
    tokens = rounds = 0
    with unmarked(drafter) if carried == "states" else nullcontext():
        for prompt in prompts:
            steps = list(decoder.decode(list(prompt), SamplingConfig(new_tokens), end_ids=end_ids(model)))[1:]
            tokens, rounds = tokens + sum(len(step.tokens) for step in steps), rounds + len(steps)
    return tokens / max(1, rounds)


@contextmanager
def unmarked(drafter: Any) -> Iterator[None]:
    """While it lasts, carried states are not told from committed ones."""
    kept = drafter.carryover_embedding.data
    drafter.carryover_embedding.data = torch.zeros_like(kept)
    try:
        yield
    finally:
        drafter.carryover_embedding.data = kept


@dataclass(frozen=True)
class Material:
    """The models, and every dataset's prompts as token ids."""

    model: Any
    drafter: Any
    baseline: Any
    prompts: dict[str, list[list[int]]]
    new_tokens: int

    def seen(self) -> dict[str, list[ObservedDecode]]:
        found = {
            name: [observe(self.model, self.drafter, ids, self.new_tokens) for ids in prompts]
            for name, prompts in self.prompts.items()
        }
        return {name: [each for each in some if each is not None] for name, some in found.items()}


def recall_tables(given: Material) -> dict[str, Rows]:
    seen = [each for some in given.seen().values() for each in some]
    return {"recall": recall(seen, given.drafter, given.baseline)}


def reconvergence_tables(given: Material) -> dict[str, Rows]:
    seen = given.seen()
    rounds = [
        {"dataset": name, **row}
        for name, some in seen.items()
        for row in rejected_rounds(some, given.drafter)
    ]
    return {
        "reconvergence": means(rounds, "R"),
        "datasets": means(rounds, "dataset"),
        "bound": bound([each for some in seen.values() for each in some], given.drafter),
    }


def attention_tables(given: Material) -> dict[str, Rows]:
    return {"attention": attention([each for some in given.seen().values() for each in some], given.drafter)}


def carried_tables(given: Material) -> dict[str, Rows]:
    chains = {} if given.baseline is None else {"baseline": (given.baseline, "nothing")}
    chains |= {kind: (given.drafter, kind) for kind in CARRIED}
    rows: Rows = []
    for dataset, prompts in given.prompts.items():
        rows.append({"dataset": dataset, "prompts": len(prompts)})
        for name, (drafter, kind) in chains.items():
            rows[-1][name] = acceptance_length(given.model, drafter, prompts, given.new_tokens, kind)
    return {"carried": rows}


DIAGNOSTICS: dict[str, Callable[[Material], dict[str, Rows]]] = {
    "recall": recall_tables,
    "reconvergence": reconvergence_tables,
    "attention": attention_tables,
    "carried": carried_tables,
}


@click.command(help=__doc__.replace("\n\n", "\n\n\b\n") if __doc__ else None)
@click.argument("diagnostic", type=click.Choice(tuple(DIAGNOSTICS)))
@click.option("--target", default="demo", show_default=True)
@click.option("--drafter", required=True, help="A drafter of `reanchor train carryover`.")
@click.option("--baseline", help="The drafter it continues; for recall and carried.")
@click.option("--dataset", multiple=True, help="A set of prompts by name; may be given again.")
@click.option("--data-dir", help="A folder with NAME.jsonl for every set.")
@click.option("--prompts", multiple=True, help="An own JSONL file of prompts; may be given again.")
@click.option("--limit", type=int, help="Prompts of every set.")
@click.option("--raw", is_flag=True, help="Without the chat template.")
@click.option("--max-new-tokens", default=128, show_default=True)
@click.option("--dtype")
@click.option("--device")
@click.option("--json", "as_json", is_flag=True)
def main(**given: Any) -> None:
    try:
        tables = DIAGNOSTICS[given["diagnostic"]](material(given))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if given["as_json"]:
        return click.echo(json.dumps({"diagnostic": given["diagnostic"], "tables": tables}))
    for name, rows in tables.items():
        table = Table(*(rows[0] if rows else ["nothing was observed"]), title=name)
        for row in rows:
            table.add_row(*(f"{each:.3f}" if isinstance(each, float) else str(each) for each in row.values()))
        Console().print(table)


def material(given: dict[str, Any]) -> Material:
    """Whatever the options name. ValueError for a drafter that reads no rejected states or is unlike the baseline."""
    if given["baseline"] is not None and given["diagnostic"] not in ("recall", "carried"):
        raise ValueError(f"{given['diagnostic']} compares with no --baseline: leave it out")
    model, tokenizer = load_target(given["target"], given["dtype"], given["device"])
    drafter = load_drafter(given["drafter"], model)
    if not drafter.carryover:
        raise ValueError(
            f"{given['drafter']} reads no rejected states: give one of `reanchor train carryover`"
        )
    baseline = None if given["baseline"] is None else load_drafter(given["baseline"], model)
    for name in ("tap_layers", "proposals") if baseline is not None else ():
        ours, theirs = getattr(drafter, name), getattr(baseline, name)
        if ours != theirs:  # they are compared at the same anchors over the same features
            raise ValueError(
                f"the baseline has {name} {theirs}, the drafter {ours}: give the one it continues"
            )
    names = given["dataset"] or ([] if given["prompts"] else ["demo"])
    sets = [load_set(name, given["data_dir"], given["limit"]) for name in names]
    sets += [load_file(path, given["limit"]) for path in given["prompts"]]
    known = (
        not given["raw"] and thinking_switch(tokenizer) is not None
    )  # thinking is off, as in `reanchor bench`
    variables = thinking_option(tokenizer, False) if known else {}
    conversation = Conversation(tokenizer, given["raw"], variables)
    longest = (SpeculativeDecoder(model).target.context_length or math.inf) - 2
    prompts = {
        each.name: [conversation.encode(prompt.turns[:1], []) for prompt in each.prompts] for each in sets
    }
    fit = {name: [ids for ids in some if len(ids) <= longest] for name, some in prompts.items()}
    for name, some in prompts.items():
        if len(some) > len(fit[name]):
            click.echo(f"{name}: {len(some) - len(fit[name])} prompts are too long and left out", err=True)
    return Material(model, drafter, baseline, fit, given["max_new_tokens"])


if __name__ == "__main__":
    main()
