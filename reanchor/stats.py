"""Statistics of a decode: one record a round, and the figures made from them (definitions as in docs/method.md).

The acceptance length tau is tokens committed per round, bonus included; the prefill is not a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from reanchor.core import VERIFIER_PATH, Round

STAGES = ("draft", "assemble", "verify", "commit")


@dataclass(frozen=True)
class RoundStats:
    """One round in figures; times in seconds."""

    tokens: int  # committed, bonus included
    accepted: int  # drafts accepted
    nodes: int  # tree nodes verified, anchor included
    blocks: int  # drafted, baseline included
    matched: int  # shifted blocks that found a place
    retained: int  # states retained from the round before
    depth: int  # drafts a round could at best accept: the depth of the tree
    from_shifted: int  # committed tokens that a shifted block put in
    from_verifier_path: int
    seconds: float  # the whole round
    stages: dict[str, float]  # the parts of it, by STAGES
    plan: str | None = None  # method auto: what it chose, and why
    why: str | None = None
    expected: float | None = None  # tokens that the prices of its tree predicted, bonus included
    edges: list[tuple[float, bool]] = field(default_factory=list)  # (price, taken) below accepted nodes
    full: bool | None = (
        None  # as many drafts accepted as a block has; None without a drafter or room for a block
    )


class Stopwatch:
    """Times stages by name. `synchronize` makes an asynchronous device finish before the clock is read."""

    def __init__(self, synchronize: Callable[[], None] | None = None) -> None:
        self.synchronize = synchronize
        self.laps: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = self.now()
        yield
        self.laps[name] = self.laps.get(name, 0.0) + self.now() - start

    def now(self) -> float:
        if self.synchronize is not None:
            self.synchronize()
        return time.perf_counter()


@dataclass
class Stats:
    """Figures of one decode, or of several added up. Rates are None where nothing was counted."""

    method: str = "reanchor"
    prompt_tokens: int = 0
    tokens: int = 0  # all committed, the prefill's one included
    time_to_first_token: float = 0.0  # seconds, summed over decodes
    rounds: list[RoundStats] = field(default_factory=list)

    @property
    def tau(self) -> float | None:
        """Acceptance length: tokens committed per round, bonus included."""
        return self._mean(self._total("tokens"))

    @property
    def decode_seconds(self) -> float:
        return sum(each.seconds for each in self.rounds)

    def stage_seconds(self) -> dict[str, float]:
        """Decode time by stage; `other` is what no stage claimed."""
        split = {stage: sum(each.stages.get(stage, 0.0) for each in self.rounds) for stage in STAGES}
        return {**split, "other": self.decode_seconds - sum(split.values())}

    def histogram(self) -> dict[int, int]:
        """Rounds by tokens committed."""
        counts: dict[int, int] = {}
        for each in self.rounds:
            counts[each.tokens] = counts.get(each.tokens, 0) + 1
        return dict(sorted(counts.items()))

    def plans(self) -> dict[str, int]:
        """Method auto: rounds by what was chosen and why, like `baseline, pays`."""
        counts: dict[str, int] = {}
        for each in self.rounds:
            if each.plan is not None:
                name = f"{each.plan}, {each.why}"
                counts[name] = counts.get(name, 0) + 1
        return counts

    def reliability(self, bins: int = 10) -> list[dict[str, float]]:
        """Method auto: edges by price, in equal bins that are not empty: the mean price, the share the target took
        and the count. Prices are right where the two agree.
        """
        sorted_in: dict[int, list[tuple[float, bool]]] = {}
        for price, taken in (edge for each in self.rounds for edge in each.edges):
            sorted_in.setdefault(min(int(price * bins), bins - 1), []).append((price, taken))
        return [
            {
                "price": sum(price for price, _ in edges) / len(edges),
                "taken": sum(taken for _, taken in edges) / len(edges),
                "edges": len(edges),
            }
            for _, edges in sorted(sorted_in.items())
        ]

    def position_rates(self) -> list[float]:
        """Share of the rounds reaching draft position j (from 1) in which it was accepted, given all before
        were.
        """
        rates = []
        for position in range(1, max((each.depth for each in self.rounds), default=0) + 1):
            reached = [
                each for each in self.rounds if each.depth >= position and each.accepted >= position - 1
            ]
            if not reached:
                break
            rates.append(sum(each.accepted >= position for each in reached) / len(reached))
        return rates

    def full_rounds(self) -> float | None:
        """Share of the rounds with room for a whole block in which as many drafts as it has were accepted."""
        told = [each.full for each in self.rounds if each.full is not None]
        return sum(told) / len(told) if told else None

    def add(self, other: Stats) -> None:
        """Fold another decode's figures in."""
        self.prompt_tokens += other.prompt_tokens
        self.tokens += other.tokens
        self.time_to_first_token += other.time_to_first_token
        self.rounds += other.rounds

    def to_dict(self, rounds: bool = True) -> dict[str, Any]:
        """All figures as JSON-ready values; times in seconds."""
        decoded, seconds = self._total("tokens"), self.decode_seconds
        shifted, path = self._total("from_shifted"), self._total("from_verifier_path")
        figures: dict[str, Any] = {
            "method": self.method,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "rounds": len(self.rounds),
            "tau": self.tau,
            "drafts_accepted_per_round": self._mean(self._total("accepted")),
            "nodes_per_round": self._mean(self._total("nodes")),
            "blocks_per_round": self._mean(self._total("blocks")),
            "matched_per_round": self._mean(self._total("matched")),
            "retained_per_round": self._mean(self._total("retained")),
            "shifted_share": shifted / decoded if decoded else None,
            "verifier_path_share": path / decoded if decoded else None,
            "full_rounds": self.full_rounds(),
            "time_to_first_token": self.time_to_first_token,
            "decode_seconds": seconds,
            "tokens_per_second": decoded / seconds if seconds else None,
            "stage_seconds": self.stage_seconds(),
            "position_rates": self.position_rates(),
            "plans": self.plans(),
            "reliability": self.reliability(),
            "expected_tau": self._mean(sum(each.expected or 0.0 for each in self.rounds))
            if self.plans()
            else None,
            "histogram": {str(tokens): count for tokens, count in self.histogram().items()},
        }
        if rounds:
            figures["per_round"] = [asdict(each) for each in self.rounds]
        return figures

    def _total(self, name: str) -> int:
        return sum(getattr(each, name) for each in self.rounds)

    def _mean(self, total: float) -> float | None:
        return total / len(self.rounds) if self.rounds else None


class Recorder:
    """Makes Stats of the rounds of one decode. Give its `stage` to the loop and every round to `add`, at once.

    Time the consumer spends between two rounds is not the round's. proposals: of the drafter's block; limit: tokens of
    the whole answer.
    """

    def __init__(
        self,
        method: str,
        prompt_tokens: int,
        synchronize: Callable[[], None] | None = None,
        *,
        proposals: int = 0,
        limit: int = 0,
    ) -> None:
        self.stats = Stats(method, prompt_tokens)
        self.proposals, self.limit = proposals, limit
        self._watch = Stopwatch(synchronize)
        self._resumed: float | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self._resumed is None:
            self._resumed = self._watch.now()
        with self._watch(name):
            yield

    def add(self, round_: Round) -> None:
        seconds = self._watch.now() - (self._resumed if self._resumed is not None else self._watch.now())
        laps, self._watch.laps, self._resumed = self._watch.laps, {}, None
        room = self.limit - self.stats.tokens - 1  # for drafts; a bonus token follows them
        self.stats.tokens += len(round_.tokens)
        if "prefill" in laps:
            self.stats.time_to_first_token = seconds
            return
        origins = round_.origins
        self.stats.rounds.append(
            RoundStats(
                tokens=len(round_.tokens),
                accepted=round_.accepted,
                nodes=len(round_.tree),
                blocks=round_.drafted,
                matched=round_.tree.matched,
                retained=round_.retained,
                depth=max(round_.tree.depths),
                from_shifted=sum(origin > 0 for origin in origins),
                from_verifier_path=sum(origin == VERIFIER_PATH for origin in origins),
                seconds=seconds,
                stages=laps,
                plan=round_.plan.name if round_.plan and round_.tree.values else None,
                why=round_.plan.why if round_.plan and round_.tree.values else None,
                expected=sum(round_.tree.values) or None,
                edges=round_.edges,
                full=round_.accepted >= self.proposals if 0 < self.proposals <= room else None,
            )
        )
