"""A GGUF file as an ordinary checkpoint folder, converted once and kept in the user's cache.

A folder gets its name only when it is whole: an interrupted conversion leaves nothing that could be loaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # no POSIX: nothing to lock with
    fcntl = None  # type: ignore[assignment]

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from reanchor.cache_folder import REMEDY, cache_folder
from reanchor.config_schema import check_config
from reanchor.files import check_regular
from reanchor.foreign import theirs

Say = Callable[[str], None]
DRAFT, SETTLING = ".conversion-", 10  # seconds in which its maker takes its lock
INSTALL = "pip install gguf accelerate"


def folder_of(file: Path, say: Say, dtype: torch.dtype = torch.float32) -> Path:
    """The converted checkpoint of a GGUF file, made on first use; one for each dtype, so that weights can lie on its
    pages. Raises ValueError with the remedy.
    """
    check_regular(file)
    try:
        with file.open("rb") as stream:
            begins = stream.read(4)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    if begins != b"GGUF":
        raise ValueError(f"{file} is not a GGUF file; a checkpoint in another format is given as its folder")
    folder = cache_folder() / f"{file.stem}-{key_of(file)}"
    clear_abandoned(folder.parent)
    if not folder.is_dir():
        say(f"Converting {file.name}, once; the next start reads {folder}")
        convert(folder, partial(write, file), ("gguf", "accelerate"))
    if dtype is torch.float32:
        return folder
    rounded = folder.with_name(f"{folder.name}-{str(dtype).removeprefix('torch.')}")
    if not rounded.is_dir():
        convert(rounded, partial(write_rounded, folder, dtype))
    return rounded


def clear_abandoned(folder: Path) -> None:
    """Delete what a conversion that was killed has left: hundreds of megabytes that nobody would find."""
    for draft in folder.glob(f"{DRAFT}*"):
        with suppress(OSError):
            if time.time() - draft.stat().st_mtime < SETTLING:
                continue
            with held(draft):
                shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def held(draft: Path) -> Iterator[None]:
    """While its maker lives, a draft is locked. OSError where another holds it."""
    if fcntl is None:
        raise OSError("nothing to lock with")
    place = os.open(draft, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(place)


def key_of(file: Path) -> str:
    """Changes with the file's content and with the library that reads it."""
    digest = hashlib.sha256(f"{transformers.__version__} {file.stat().st_size} ".encode())
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()[:16]


def convert(folder: Path, write_to: Callable[[Path], None], packages: Sequence[str] = ()) -> None:
    """Write beside the final name, then rename."""
    for module in packages:
        try:
            import_module(module)
        except ImportError as error:
            raise ValueError(f"a GGUF file needs the package {module} to be read: {INSTALL}") from error
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=DRAFT, dir=folder.parent))
    except OSError as error:
        raise ValueError(
            f"the converted model cannot be kept in {folder.parent} ({error.strerror}); {REMEDY}"
        ) from error
    try:
        with held(draft) if fcntl is not None else nullcontext():
            write_to(draft)
            publish(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write(file: Path, folder: Path) -> None:
    """Dequantised to float32."""
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    with theirs(f"transformers cannot read {file} (fetch the file again)"):
        config = AutoConfig.from_pretrained(**source, trust_remote_code=False)
        check_config(config.to_dict())
        model, info = AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.float32, output_loading_info=True, trust_remote_code=False, **unpacked()
        )
        tokenizer = AutoTokenizer.from_pretrained(**source, trust_remote_code=False)
    missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(f"{file} lacks tensors: {', '.join(missing)}; fetch the file again")
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are plain now
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.generation_config = model.generation_config
    save(plain, model.state_dict(), tokenizer, folder)


def write_rounded(source: Path, dtype: torch.dtype, folder: Path) -> None:
    with theirs(f"the converted model cannot be read; delete the folder {source}, and it is made again"):
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    save(model, model.state_dict(), tokenizer, folder)


def save(model: Any, state: dict[str, Any], tokenizer: Any, folder: Path) -> None:
    with theirs(f"the converted model cannot be written to {folder.parent}", REMEDY):
        model.save_pretrained(folder, state_dict=state)
        tokenizer.save_pretrained(folder)


def unpacked() -> dict[str, Any]:
    """Newer transformers keep GGUF weights packed where a kernel is installed; here they are wanted plain."""
    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def publish(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was first, with the same content
            raise
