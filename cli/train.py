"""`reanchor train`: the target's responses, a baseline drafter, its Carryover continuation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reanchor.files import named_path, read_json
from reanchor.lock import locked
from reanchor.training.drafter_shape import DrafterShape
from reanchor.training.record_config import RecordConfig
from reanchor.training.train_config import TrainConfig

from .console import hush, say, usage_errors, write
from .options import config_from, options

if TYPE_CHECKING:
    from reanchor.training.recording import PendingPrompt


class NamedPath(click.ParamType):
    """A path that can be one, ~ for the home folder."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        try:
            return named_path(value, param.opts[0] if param is not None and param.opts else "a path")
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from error


NAMED = NamedPath()


@click.group()
def train() -> None:
    """Train a drafter on its target's own responses."""


def use_recipe(context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    """Options that the command line leaves out come from the recipe's section of this command's name."""
    if path is None:
        return
    try:
        recipe = read_json(path)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"cannot read the recipe {str(path)!r}: {error}", context) from error
    if not all(isinstance(each, dict) for each in recipe.values()):
        raise click.UsageError(f"the recipe {str(path)!r} must hold an object for every command", context)
    strangers = sorted(recipe.keys() - train.commands.keys())
    if strangers:
        raise click.UsageError(
            f"the recipe {str(path)!r} has a section {', '.join(strangers)}; there are {', '.join(train.commands)}",
            context,
        )
    section = recipe.get(context.info_name or "", {})
    unknown = sorted(section.keys() - {option.name for option in context.command.params})
    if unknown:
        raise click.UsageError(
            f"the recipe's section {context.info_name!r} has {', '.join(unknown)}, which the command doesn't know; "
            "options are written as in --help, with _ for -",
            context,
        )
    several = {option.name for option in context.command.params if getattr(option, "multiple", False)}
    context.default_map = {
        name: [value] if name in several and isinstance(value, str) else value
        for name, value in section.items()
    }


recipe = click.option(
    "--recipe",
    type=NAMED,
    is_eager=True,
    expose_value=False,
    callback=use_recipe,
    help="JSON file with options; the command line overrides it.",
)


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: what every training stage is told."""
    path = NAMED
    for option in (
        recipe,
        click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --out."),
        click.option("--features", type=path, help="Folder that keeps the target's features once computed."),
        click.option("--device", help="cpu, cuda, cuda:1.  [default: cuda where there is one]"),
        click.option("--dtype", default="bfloat16", show_default=True, help="Of the target."),
        click.option(
            "--target", default="demo", show_default=True, help="Folder, .gguf file, hub id, or demo."
        ),
        click.option("--out", type=path, required=True, help="Folder of the run."),
        click.option("--responses", type=path, required=True, help="JSONL of `reanchor train responses`."),
    ):
        command = option(command)
    return command


@train.command()
@recipe
@click.option("--prompts", multiple=True, help="JSONL of prompts (field turns); may be given again.")
@click.option(
    "--dataset", multiple=True, help="A set by name, such as ultrachat or magpie; may be given again."
)
@click.option("--limit", type=int, help="Prompts of every set.  [default: all]")
@click.option("--raw", is_flag=True, help="Send prompts as they are, without the chat template.")
@click.option("--thinking/--no-thinking", default=None, help="Thinking mode, where the target has one.")
@click.option("--target", default="demo", show_default=True, help="Folder, .gguf file, hub id, or demo.")
@click.option("--dtype", default="bfloat16", show_default=True, help="Of the target.")
@click.option("--device", help="cpu, cuda, cuda:1.  [default: cuda where there is one]")
@click.option("--out", type=NAMED, required=True, help="The file; it is gone on with.")
@click.option(
    "--features",
    type=NAMED,
    help="Folder that keeps the target's features, for --features of the other stages.",
)
@options(RecordConfig)
def responses(**given: Any) -> None:
    """Let the target answer prompts, once, for all training on them."""
    with mistakes():
        config = config_from(RecordConfig, given)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("responses are recorded by one process: start this stage without a launcher")
        from reanchor.loading import load_target
        from reanchor.training.recording import record

        hush()
        model, tokenizer = load_target(given["target"], given["dtype"], given["device"], say)
        if tokenizer is None:
            raise ValueError(f"the target {given['target']!r} has no tokenizer to read prompts with")
        with locked(given["out"], "--out"):
            record(model, questions(given, tokenizer), given["out"], config, say, given["features"])
    write(f"{given['out']}\n")


def questions(given: dict[str, Any], tokenizer: Any) -> list[PendingPrompt]:
    """The first turn of every prompt: what later turns would be said to is not known yet."""
    from reanchor.datasets import load_file, load_set
    from reanchor.training.recording import PendingPrompt

    from .prompt import prompt_ids

    everything = 1 << 62 if given["limit"] is None else given["limit"]
    sets = [load_file(path, everything) for path in given["prompts"]]
    sets += [load_set(name, limit=everything) for name in given["dataset"]]
    if not sets:
        raise ValueError("nothing to answer: give --prompts FILE or --dataset NAME")
    names = [each.name for each in sets]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:  # their prompts would have the same keys
        raise ValueError(f"two sets are called {', '.join(doubled)}; rename one of the files")
    return [
        PendingPrompt(
            f"{each.name}/{prompt.id}",
            each.name,
            prompt_ids(prompt.turns[0], tokenizer, given["raw"], thinking=given["thinking"]),
        )
        for each in sets
        for prompt in each.prompts
    ]


@train.command()
@common
@click.option("--init", help="Drafter to start from: folder, hub id, or demo.  [default: a new one]")
@options(DrafterShape)
@options(TrainConfig)
def drafter(**given: Any) -> None:
    """Train a DFlash or Markov baseline."""
    with mistakes():
        shape = config_from(DrafterShape, given)
    run(carryover=False, shape=shape, **given)


@train.command()
@common
@click.option("--init", required=True, help="Baseline to continue: folder, hub id, or demo.")
@options(TrainConfig)
def carryover(**given: Any) -> None:
    """Teach a baseline to read rejected states."""
    run(carryover=True, shape=DrafterShape(), **given)


def run(carryover: bool, target: str, dtype: str, device: str | None, init: str | None, **given: Any) -> None:
    with mistakes():
        config = config_from(TrainConfig, given)
        check_installed()
        from reanchor.loading import load_target
        from reanchor.training.jobs import TrainingJob, train

        first = os.environ.get("RANK", "0") == "0"
        hush()
        model, _ = load_target(target, dtype, own_device(device), say)
        job = TrainingJob(start=init, carryover=carryover, config=config, target=target, **given)
        # Processes of one launch are one run: the first holds the folder for all.
        with locked(job.out / ".lock", "--out") if first else nullcontext():
            folder = train(job, model.requires_grad_(False), say if first else quiet)
    if first:
        write(f"{folder}\n")


@contextmanager
def mistakes() -> Iterator[None]:
    """A user's, and what the file system refuses: a full disk, a folder that is a file."""
    with usage_errors():
        try:
            yield
        except OSError as error:
            where = f" {error.filename!r}" if error.filename else ""
            raise ValueError(f"cannot write or read{where}: {error.strerror or error}") from error


def check_installed() -> None:
    """Before anything is loaded, let alone trained."""
    missing = [name for name in ("accelerate", "matplotlib") if find_spec(name) is None]
    if missing:
        raise ValueError(f"training needs {' and '.join(missing)}: pip install 'reanchor-decoding[train]'")


def own_device(asked: str | None) -> str | None:
    """Of several processes on one machine, each has a device of its own, unless one is named; None: the usual."""
    place = os.environ.get("LOCAL_RANK")
    if place is None or asked not in (None, "cuda"):
        return asked
    import torch

    return f"cuda:{place}" if torch.cuda.is_available() else asked


def quiet(_message: str) -> None:
    """The first process speaks for all."""
