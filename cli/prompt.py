"""Prompt of the user, typed, named or piped in, and its token ids."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from reanchor.chat import chat_template, encode_chat, thinking_option


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The text of --prompt, --prompt-file or stdin. ValueError when there is none, or it is no text."""
    if prompt is not None and file is not None:
        raise ValueError("--prompt and --prompt-file are both given; one prompt is answered at a time")
    if prompt is not None:
        text = prompt
    elif file is not None and file != "-":
        text = decoded(read_file(file), file)
    else:
        text = decoded(read_stdin(), "standard input")
    if not text.strip():
        raise ValueError("the prompt is empty; give --prompt TEXT, --prompt-file FILE, or pipe one in")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the prompt is not UTF-8; check the terminal's encoding") from error
    return text


def read_file(name: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read --prompt-file {name}: {error.strerror}") from error


def read_stdin() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("no prompt; give --prompt TEXT, --prompt-file FILE, or pipe one in")
    return sys.stdin.buffer.read()


def decoded(data: bytes, source: str) -> str:
    """UTF-8 text without the newline that ends a file."""
    try:
        return data.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source} is not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start}); convert it, "
            "for example with iconv -t UTF-8"
        ) from error


def prompt_ids(
    text: str, tokenizer: Any, raw: bool = False, system: str | None = None, thinking: bool | None = None
) -> list[int]:
    """Token ids of the prompt, as a chat where the tokenizer has a template and `raw` doesn't forbid it."""
    if raw or chat_template(tokenizer) is None:
        why = "--raw sends the prompt as it is" if raw else "the target's tokenizer has no chat template"
        for name, value in (("--system", system), ("--thinking", thinking)):
            if value is not None:
                raise ValueError(f"{name} needs a chat template, but {why}; drop one of them")
        return list(tokenizer(text).input_ids)
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    return encode_chat(tokenizer, messages, thinking_option(tokenizer, thinking))
