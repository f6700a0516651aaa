"""`reanchor train`: the target's responses, a baseline drafter, its Carryover continuation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from reanchor.training.config import TrainConfig
from reanchor.training.shape import Shape

from .console import say, usage_errors
from .options import options, take


@click.group()
def train() -> None:
    """Train a drafter on its target's own responses."""


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: what every training stage is told."""
    path = click.Path(path_type=Path)
    for option in (
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
@common
@click.option("--start", help="Drafter to start from: folder, hub id, or demo.  [default: a new one]")
@options(Shape)
@options(TrainConfig)
def drafter(**given: Any) -> None:
    """Train a DFlash or Markov baseline."""
    run(carryover=False, shape=take(Shape, given), **given)


@train.command()
@common
@click.option("--start", required=True, help="Baseline to continue: folder, hub id, or demo.")
@options(TrainConfig)
def carryover(**given: Any) -> None:
    """Teach a baseline to read rejected states."""
    run(carryover=True, shape=Shape(), **given)


def run(carryover: bool, target: str, dtype: str, device: str | None, **given: Any) -> None:
    with usage_errors():
        config = take(TrainConfig, given)
        from reanchor.loading import load_target
        from reanchor.training.run import Job, train

        model, _ = load_target(target, dtype, device, say)
        folder = train(Job(carryover=carryover, config=config, **given), model.requires_grad_(False), say)
    click.echo(folder)
