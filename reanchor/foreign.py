"""What transformers, safetensors, tokenizers and the hub raise, as one sentence of ours with the cause chained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 600  # characters of their message that are repeated
PANIC = "PanicException"  # of the libraries written in Rust; derived from BaseException, so that nobody catches it


@contextmanager
def theirs(what: str, remedy: str = "") -> Iterator[None]:
    """`what` says what could not be done; their own words follow it, then the remedy, unless `what` names it.

    Everything they raise is caught: what a damaged file makes a library raise, no list of types would tell. An
    interruption passes.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise ValueError(f"{what}: {words_of(error)}{'; ' if remedy else ''}{remedy}") from error


def words_of(error: BaseException) -> str:
    """Their message on one line, and the type where it says nothing by itself."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    said = " ".join(str(error).split())
    kind = type(error)
    clear = (
        said
        and (issubclass(kind, (OSError, ValueError)) or kind.__module__ != "builtins")
        and kind.__name__ != PANIC
    )
    named = said if clear else f"{kind.__name__}: {said}"
    return named if len(named) <= LONGEST else f"{named[:LONGEST]} ..."
