"""`reanchor generate`."""

from __future__ import annotations

import click


@click.command()
def generate() -> None:
    """Answer a prompt."""
    raise click.UsageError("not in this version yet")
