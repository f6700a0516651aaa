"""The group of commands; a command's file, and what it imports, is loaded when the command is asked for."""

from __future__ import annotations

from importlib import import_module

import click

import reanchor

COMMANDS = {
    "generate": "Answer a prompt.",
    "inspect": "Say what a drafter's checkpoint is.",
    "bench": "Measure speed and acceptance, gated on equal output.",
    "doctor": "Say what this machine can do, and whether a pair fits together.",
    "train": "Train a drafter.",
}


INTERRUPTED = 130  # as a shell has it


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        try:
            command: click.Command = getattr(import_module(f"{__package__}.{name}"), name)
        except KeyboardInterrupt:  # while torch is imported, click is not yet there to catch it
            raise click.exceptions.Exit(INTERRUPTED) from None
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(reanchor.__version__)
def main() -> None:
    """Speculative decoding that re-anchors block drafts on rejected verifier states."""
