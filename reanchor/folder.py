"""A target's folder, before transformers is shown it: its files, its config, and whether its tensors fit that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from safetensors import safe_open

from reanchor.config_schema import check_config, check_generation
from reanchor.files import CONFIG_BYTES, TEXT_BYTES, check_regular, files_of_index, read_json

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
READ = (".json", ".jinja", ".txt", ".model", ".tiktoken")  # what a tokenizer or a config is read from
WEIGHTS = (".safetensors", ".bin")
LONG = ("tokenizer.json", "vocab.json", "merges.txt", ".model", ".tiktoken")
NUMBERED = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
PACKED = 16  # values that one stored number may stand for in a quantised checkpoint, with room


def config_of(folder: Path) -> dict[str, Any]:
    """The config of a folder that is fit to be loaded. Raises ValueError naming file, value and remedy."""
    for path in folder.iterdir():
        if path.name.endswith((*READ, *WEIGHTS)) and not path.is_dir():
            limit = TEXT_BYTES if path.name.endswith(LONG) else CONFIG_BYTES
            try:
                check_regular(path, None if path.name.endswith(WEIGHTS) else limit)
            except FileNotFoundError:
                raise ValueError(f"{str(path)!r} is a link to nothing; fetch the file again") from None
    try:
        config = read_json(folder / CONFIG)
    except FileNotFoundError:
        raise ValueError(f"it has no {CONFIG}; give the folder of a whole checkpoint") from None
    if (folder / TOKENIZER).exists():
        read_json(folder / TOKENIZER)
    if (folder / GENERATION).exists():
        check_generation(read_json(folder / GENERATION))
    check_config(config)
    check_layers(config, folder)
    return config


def tensor_files(folder: Path) -> list[Path]:
    """Those of safetensors that transformers would read; none where the weights are in another format."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    return [folder / name for name in files_of_index(index, read_json(index))] if index.is_file() else []


def shapes_in(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    for file in tensor_files(folder):
        with safe_open(file, framework="pt") as reader:
            for name in reader.keys():  # noqa: SIM118
                yield name, tuple(reader.get_slice(name).get_shape())


def check_layers(config: dict[str, Any], folder: Path) -> None:
    """More layers than there are tensors of would be built before anybody missed them."""
    said = (config.get("text_config") or config).get("num_hidden_layers")
    found = [int(number[1]) for name, _ in shapes_in(folder) if (number := NUMBERED.search(name))]
    if isinstance(said, int) and found and said > max(found) + 1:
        raise ValueError(
            f"it has num_hidden_layers {said} in its config and tensors of {max(found) + 1} layers; restore "
            f"{CONFIG}, or fetch it again"
        )


def check_parameters(parameters: int, folder: Path) -> None:
    """What tensors are missing of would be made, at random, and only then be missed."""
    held = sum(prod(shape) for _, shape in shapes_in(folder))
    if held and parameters > PACKED * held + (1 << 20):
        raise ValueError(
            f"it is a model of {parameters} parameters by its config, and its files hold {held} values; restore "
            f"{CONFIG}, or fetch it again"
        )
