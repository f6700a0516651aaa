"""Talk goes to stderr through one console, answers to stdout; a user's mistake ends with exit code 2."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import click
from rich.console import Console

console = Console(stderr=True, highlight=False)
quiet = False  # --quiet: answers and errors only


@contextmanager
def usage_errors() -> Iterator[None]:
    """A ValueError names what was wrong and the remedy; the user needs no traceback with it, nor a warning's
    place in the source.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_place: say(f"warning: {message}")
            yield
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context(silent=True)) from error


def say(message: str) -> None:
    """A line a message, however long: a log is searched by lines, and a terminal breaks them itself."""
    if not quiet:
        talk(message, style="dim", markup=False, soft_wrap=True)


def talk(*what: Any, **how: Any) -> None:
    """To stderr, and to nobody where it is closed or full: the answer doesn't depend on the talk about it."""
    with suppress(OSError, ValueError, AttributeError):  # the last where there is no stderr
        console.print(*what, **how)


def be_quiet(_context: click.Context, _option: click.Parameter, asked: bool) -> None:
    global quiet
    quiet = asked


def quieted() -> bool:
    return quiet


def hush() -> None:
    """The bars and warnings of transformers are broken lines in a terminal, beside what we say ourselves."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def waiting(what: str) -> AbstractContextManager[object]:
    """A sign of life while something takes long; none where nobody looks."""
    return nullcontext() if quiet or not console.is_terminal else console.status(what)


def encodable(text: str) -> str:
    """With replacements for the characters that the encoding of stdout lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)


class OutputClosed(click.ClickException):
    exit_code = 2


def write(text: str) -> None:
    """Write to stdout at once, or end without a traceback when nobody reads it any more."""
    if sys.stdout is None or sys.stdout.closed:
        raise OutputClosed("standard output is closed, the answer has nowhere to go")
    try:
        click.echo(encodable(text), nl=False)
    except BrokenPipeError as error:
        sys.stdout = None  # else the interpreter flushes it again at exit and complains
        raise OutputClosed("standard output was closed by its reader") from error
    except OSError as error:
        sys.stdout = None
        raise OutputClosed(f"standard output cannot be written: {error.strerror}") from error
