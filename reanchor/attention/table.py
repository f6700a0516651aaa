"""The ordered backends of the room, the choice among them and the reasons of those that declined.

A backend that declines says why, in words a user can act on; nothing falls back silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from reanchor.attention import flash, reference, sdpa, triton
from reanchor.attention.problem import Problem


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
class BackendChoice:
    backend: Backend
    refusals: dict[str, str]  # name -> why it was passed over, in the table's order


UNBUILT = ("OutOfResources", "CompilationError")  # of Triton, which need not be installed to be named


def check_choice(choice: str) -> None:
    if choice != "auto" and choice not in BACKENDS:
        raise ValueError(f"attention must be one of auto, {', '.join(BACKENDS)}, got {choice!r}")


def pick(problem: Problem, choice: str = "auto", unbuilt: Mapping[str, str] | None = None) -> BackendChoice:
    """The first backend that takes the problem, or the one named; ValueError when that one declines.

    unbuilt: backends whose kernels could not be built for it, and why.
    """
    check_choice(choice)
    refusals: dict[str, str] = {}
    for backend in BACKENDS.values() if choice == "auto" else [BACKENDS[choice]]:
        refusal = (unbuilt or {}).get(backend.name) or backend.decline(problem)
        if refusal is None:
            return BackendChoice(backend, refusals)
        refusals[backend.name] = refusal
    if choice == "auto":
        raise ValueError(
            "no attention backend takes this model: " + "; ".join(map(": ".join, refusals.items()))
        )
    raise ValueError(f"attention {choice!r} declined: {refusals[choice]}; use 'auto' to take one that can")


@dataclass
class Attention:
    """A choice of backend and what came of it; problems of one kind are decided once.

    refused: why a model cannot come here at all, so that its own attention does the work.
    """

    choice: str = "auto"
    refused: str | None = None
    picks: dict[tuple[object, ...], BackendChoice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice(self.choice)
        if self.refused is not None and self.choice != "auto":
            raise ValueError(f"attention {self.choice!r} cannot serve this model: {self.refused}; use 'auto'")

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
        unbuilt: dict[str, str] = {}
        while True:
            if kind not in self.picks:
                self.picks[kind] = pick(problem, self.choice, unbuilt)
            backend = self.picks[kind].backend
            try:
                return backend.attend(problem)
            except Exception as error:
                if type(error).__name__ not in UNBUILT:
                    raise
                said = " ".join(str(error).split())[:200]
                unbuilt[backend.name] = f"its kernel cannot be built here ({type(error).__name__}: {said})"
                del self.picks[kind]

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

    def report(self) -> dict[str, object]:
        """What a summary says: the backends that worked, and why others did not."""
        used = [*self.used, *([] if self.refused is None else ["the model's own"])]
        why = {"ours": [self.refused]} if self.refused is not None else {}
        declined = {name: list(reasons) for name, reasons in self.refusals.items()}
        return {"choice": self.choice, "used": used, "declined": {**why, **declined}}
