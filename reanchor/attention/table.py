"""The ordered backends of the room, the choice among them and the reasons of those that declined.

A backend that declines says why, in words a user can act on; nothing falls back silently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from reanchor.attention import flash, reference, sdpa, triton
from reanchor.attention.problem import Problem

Choice = Literal["auto", "reference", "sdpa", "triton", "flash"]


@dataclass(frozen=True)
class Backend:
    name: str
    decline: Callable[[Problem], str | None]  # None: it can
    attend: Callable[[Problem], Tensor]  # [N, Hq, D]


BACKENDS = {
    room.name: room
    for room in (
        Backend("triton", triton.decline, triton.attend),
        Backend("flash", flash.decline, flash.attend),
        Backend("sdpa", sdpa.decline, sdpa.attend),
        Backend("reference", reference.decline, reference.attend),
    )
}


@dataclass(frozen=True)
class Pick:
    backend: Backend
    refusals: dict[str, str]  # name -> why it was passed over, in the table's order


def pick(problem: Problem, choice: str = "auto") -> Pick:
    """The first backend that takes the problem, or the one named; ValueError when that one declines."""
    if choice != "auto" and choice not in BACKENDS:
        raise ValueError(f"attention must be one of auto, {', '.join(BACKENDS)}, got {choice!r}")
    refusals: dict[str, str] = {}
    for backend in BACKENDS.values() if choice == "auto" else [BACKENDS[choice]]:
        refusal = backend.decline(problem)
        if refusal is None:
            return Pick(backend, refusals)
        refusals[backend.name] = refusal
    if choice == "auto":
        raise ValueError(
            "no attention backend takes this model: " + "; ".join(map(": ".join, refusals.items()))
        )
    raise ValueError(f"attention {choice!r} declined: {refusals[choice]}; use 'auto' to take one that can")


@dataclass
class Attention:
    """A choice of backend and what came of it; problems of one kind are decided once."""

    choice: str = "auto"
    picks: dict[tuple[object, ...], Pick] = field(default_factory=dict)

    def attend(self, problem: Problem) -> Tensor:
        """[N, Hq, D]"""
        kind = (
            problem.queries.dtype,
            problem.queries.device,
            problem.queries.shape[1:],
            problem.sees.known_length() is None,
            problem.binding_window,
            problem.softcap,
        )
        if kind not in self.picks:
            self.picks[kind] = pick(problem, self.choice)
        return self.picks[kind].backend.attend(problem)

    @property
    def used(self) -> tuple[str, ...]:
        """Backends that did work, in the order they first did."""
        return tuple(dict.fromkeys(made.backend.name for made in self.picks.values()))

    @property
    def refusals(self) -> dict[str, tuple[str, ...]]:
        """Every reason a backend gave, by backend."""
        given: dict[str, dict[str, None]] = {}
        for made in self.picks.values():
            for name, reason in made.refusals.items():
                given.setdefault(name, {})[reason] = None
        return {name: tuple(reasons) for name, reasons in given.items()}
