"""Prompt of the user, typed, named or piped in, and its token ids."""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

from reanchor.chat import chat_template, render_chat, thinking_option
from reanchor.files import named_path
from reanchor.foreign import theirs

LONGEST = 16 << 20  # bytes of a prompt; the longest context of a model by now takes half of that
PIECE = 1 << 16  # characters that are tokenized at once while a prompt may still be too long


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
    if len(text) > LONGEST:
        raise too_long(f"more than {LONGEST >> 20} MB")
    if not text.strip():
        raise ValueError("the prompt is empty; give --prompt TEXT, --prompt-file FILE, or pipe one in")
    check_text(text, "the prompt")
    return text


def check_text(text: str, name: str) -> None:
    """ValueError for half of a character (a lone surrogate), which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} is not UTF-8 (character {error.start + 1} is half of one); check the terminal's encoding"
        ) from error


def too_long(size: str) -> ValueError:
    return ValueError(f"the prompt has {size}, which no target's context holds; shorten it")


def read_file(name: str) -> bytes:
    try:
        with named_path(name, "--prompt-file").open("rb") as stream:
            return at_most(stream)
    except OSError as error:
        raise ValueError(f"cannot read --prompt-file {name:.200}: {error.strerror}") from error


def read_stdin() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("no prompt; give --prompt TEXT, --prompt-file FILE, or pipe one in")
    return at_most(sys.stdin.buffer)


def at_most(stream: BinaryIO) -> bytes:
    """All of a stream, unless it is longer than any prompt: it may never end."""
    data = stream.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise too_long(f"more than {LONGEST >> 20} MB")
    return data


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
    text: str,
    tokenizer: Any,
    raw: bool = False,
    system: str | None = None,
    thinking: bool | None = None,
    context: int | None = None,
) -> list[int]:
    """Token ids of the prompt, as a chat where the tokenizer has a template and `raw` doesn't forbid it. A text that is
    longer than the target's `context` is refused before it is tokenized whole.
    """
    check_length(text, tokenizer, context)
    if raw or chat_template(tokenizer) is None:
        why = "--raw sends the prompt as it is" if raw else "the target's tokenizer has no chat template"
        for name, value in (("--system", system), ("--thinking", thinking)):
            if value is not None:
                raise ValueError(f"{name} needs a chat template, but {why}; drop one of them")
        return encoded(tokenizer, text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    chat = render_chat(tokenizer, messages, thinking_option(tokenizer, thinking))
    return encoded(tokenizer, chat, add_special_tokens=False)


def encoded(tokenizer: Any, text: str, **how: bool) -> list[int]:
    with theirs("the target's tokenizer cannot read this prompt"):
        ids: list[int] = tokenizer(text, **how).input_ids
    return ids


def check_length(text: str, tokenizer: Any, context: int | None) -> None:
    """Piece by piece; a cut may add a token or two."""
    if context is None or len(text) <= PIECE:
        return
    tokens = 0
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        tokens += len(encoded(tokenizer, piece, add_special_tokens=False)) - 2
        if tokens >= context:
            raise ValueError(
                f"the prompt has {len(text)} characters, of which the first {start + PIECE} alone are more than the "
                f"target's context of {context} tokens; shorten it to leave room for at least one new token"
            )
