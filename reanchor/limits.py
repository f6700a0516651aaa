"""A bound of time and memory around code that a checkpoint brings: chat templates are programs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

try:
    import resource
except ImportError:  # no POSIX: nothing to bound with
    resource = None  # type: ignore[assignment]

STATM = Path("/proc/self/statm")


class Exceeded(Exception):
    """The time is over."""


@contextmanager
def limited(seconds: float, memory: int) -> Iterator[None]:
    """Raises Exceeded after so many seconds and MemoryError beyond so many further bytes, where the system can: both
    need POSIX, and the clock the main thread.
    """
    with in_time(seconds), in_memory(memory):
        yield


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(_signal: int, _frame: FrameType | None) -> None:
        raise Exceeded(f"it takes more than {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def in_memory(further: int) -> Iterator[None]:
    taken = address_space()
    if resource is None or taken is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = taken + further if hard == resource.RLIM_INFINITY else min(taken + further, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def address_space() -> int | None:
    """Bytes this process has mapped; None where the system does not tell."""
    if resource is None:
        return None
    try:
        return int(STATM.read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None
