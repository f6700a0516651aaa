"""The answer on its way to stdout: a streamer that writes whole characters as tokens are committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.generation import BaseStreamer

INCOMPLETE = "\ufffd"  # what a tokenizer shows for bytes that are not yet a character


class AnswerStream(BaseStreamer):
    """Tokens in, text out. A token's text may depend on the one before it, so a little is decoded again."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self.tokenizer, self.write = tokenizer, write
        self.ids: list[int] | None = None  # none until the prompt, which is put first, has passed
        self.context, self.written = (
            0,
            0,
        )  # where the re-decoded context begins, and where unwritten tokens begin

    def put(self, value: Tensor) -> None:
        if self.ids is None:
            self.ids = []
            return
        self.ids += value.flatten().tolist()
        fresh = self.fresh()
        if fresh and not fresh.endswith(INCOMPLETE):
            self.context, self.written = self.written, len(self.ids)
            self.write(fresh)

    def end(self) -> None:
        fresh = self.fresh()
        if fresh:
            self.write(fresh)
        self.write("\n")

    def fresh(self) -> str:
        """The text that tokens not yet written add."""
        ids = (self.ids or [])[self.context :]
        known = self.text(ids[: self.written - self.context])
        return self.text(ids)[len(known) :]

    def text(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
