"""A config dataclass as click options, so that a knob is named, explained and given its default once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from reanchor.config import ReAnchorRules, parse_rules

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C")


def options(config: type, without: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Decorator: one option a field, those in `without` left out; the help is the field's metadata."""
    hints = get_type_hints(config)

    def decorate(command: F) -> F:
        for knob in reversed([each for each in fields(config) if each.name not in without]):
            flag = "--" + knob.name.replace("_", "-")
            if is_dataclass(hints[knob.name]):
                command = rule_option(command)
                continue
            kind = option_type(hints[knob.name])
            command = click.option(
                f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
                type=kind,
                default=knob.default,
                show_default=knob.default is not None,
                help=knob.metadata["help"],
            )(command)
        return command

    return decorate


def rule_option(command: F) -> F:
    """--rule NAME=VALUE, for the rules of method reanchor."""
    rules = "; ".join(f"{each.name}: {each.metadata['help']}" for each in fields(ReAnchorRules))
    text = f"A rule of method reanchor; may be given again. {rules}"
    return click.option(
        "--rule",
        "rules",
        multiple=True,
        metavar="NAME=VALUE",
        help=text,
    )(command)


def option_type(hint: Any) -> Any:
    """The click type of a field's annotation; None as a value stands for an option that isn't given."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    return click.Choice(get_args(hint)) if get_origin(hint) is Literal else hint


def config_from(config: type[C], given: dict[str, Any]) -> C:
    """Build a config of its own options, removing them from `given`; a field without one has its default."""
    if isinstance(given.get("rules"), tuple):
        given["rules"] = parse_rules(given["rules"])
    named = [knob.name for knob in fields(config) if knob.name in given]  # type: ignore[arg-type]
    return config(**{name: given.pop(name) for name in named})


PAIR = (
    click.option("--target", default="demo", show_default=True, help="Folder, .gguf file, hub id, or demo."),
    click.option(
        "--drafter",
        default="default",
        help="Folder, hub id, demo, auto (the published one for the target), or none (method auto "
        "with the sources that need no draft).  [default: demo for the demo target, else none]",
    ),
    click.option(
        "--dtype", help="float32, bfloat16, float16 or float64.  [default: float32 on a CPU, else bfloat16]"
    ),
    click.option(
        "--confidence-threshold",
        default=0.0,
        show_default=True,
        help="Cut a block where the drafter's own confidence head falls below this; 0 never does.",
    ),
    click.option("--device", help="cpu, cuda, cuda:1, mps.  [default: cuda where there is one]"),
)


def pair_options(command: F) -> F:
    """Decorator: what to load, in which precision, and where."""
    for option in reversed(PAIR):
        command = option(command)
    return command
