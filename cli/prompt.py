"""From what the user typed, named or piped in to the prompt's token ids."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

THINKING = re.compile(r"\b(enable_thinking|thinking)\b")  # the two names that chat templates give the switch


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
    template = None if raw else tokenizer.chat_template and tokenizer.get_chat_template()
    if not template:
        why = "--raw sends the prompt as it is" if raw else "the target's tokenizer has no chat template"
        for name, value in (("--system", system), ("--thinking", thinking)):
            if value is not None:
                raise ValueError(f"{name} needs a chat template, but {why}; drop one of them")
        ids: list[int] = tokenizer(text).input_ids
        return ids
    switch = {}
    if thinking is not None:
        known = THINKING.search(template)
        if known is None:
            raise ValueError(
                "the target's chat template knows no thinking mode; drop --thinking or --no-thinking"
            )
        switch = {known[1]: thinking}
    messages = [{"role": "system", "content": system}] if system is not None else []
    chat = render(tokenizer, [*messages, {"role": "user", "content": text}], switch)
    ids = tokenizer(chat, add_special_tokens=False).input_ids
    return ids


def thinks(tokenizer: Any, thinking: bool | None) -> bool | None:
    """The mode a chat is rendered in; None where the template knows none."""
    template = tokenizer.chat_template and tokenizer.get_chat_template()
    known = THINKING.search(template) if template else None
    if known is None or thinking is not None:
        return thinking
    message = [{"role": "user", "content": "a"}]
    return render(tokenizer, message, {}) == render(tokenizer, message, {known[1]: True})


def render(tokenizer: Any, messages: list[dict[str, str]], switch: dict[str, bool]) -> str:
    from jinja2 import TemplateError

    try:
        chat: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **switch
        )
    except TemplateError as error:
        raise ValueError(
            f"the target's chat template refuses this prompt: {error}; --raw goes without it"
        ) from error
    return chat
