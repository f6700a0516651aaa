"""Talk goes to stderr through one console, answers to stdout; a user's mistake ends with exit code 2."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console

console = Console(stderr=True, highlight=False)


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
    console.print(message, style="dim", markup=False, soft_wrap=True)


class OutputClosed(click.ClickException):
    exit_code = 2


def write(text: str) -> None:
    """Write to stdout at once, or end without a traceback when background reads it any more."""
    if sys.stdout is None or sys.stdout.closed:
        raise OutputClosed("standard output is closed, the answer has nowhere to go")
    try:
        click.echo(text, nl=False)
    except BrokenPipeError as error:
        sys.stdout = None  # else the interpreter flushes it again at exit and complains
        raise OutputClosed("standard output was closed by its reader") from error
    except OSError as error:
        sys.stdout = None
        raise OutputClosed(f"standard output cannot be written: {error.strerror}") from error
