"""One run at a time writes a results file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # no POSIX: nothing to lock with
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file, made empty where there is none. ValueError when another run holds it, or it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a", encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"the results cannot be written to {path} ({error.strerror}); give another --output"
        ) from error
    with stream:
        if fcntl is not None:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(
                    f"another run is writing {path}; wait for its end, or give another --output"
                ) from error
            except OSError as error:
                raise ValueError(
                    f"{path} cannot be locked ({error.strerror}); give an --output on a disk of this machine"
                ) from error
        yield
