"""Exclusive lock of a file or a folder of results: one process at a time writes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def locked(path: Path, option: str = "--output") -> Iterator[None]:
    """Hold a file, made empty where there is none, by a lock file beside it, which stays.

    Raises:
        ValueError: another run holds it, or it cannot be written or locked.
    """
    lock = FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ValueError(
            f"another run is writing {path}; wait for its end, or give another {option}"
        ) from error
    except NotImplementedError as error:
        raise ValueError(f"{path} cannot be locked ({error}); give an {option} on a local disk") from error
    except OSError as error:
        raise ValueError(
            f"the results cannot be written to {path} ({error.strerror}); give another {option}"
        ) from error
    try:
        yield
    finally:
        lock.release()
