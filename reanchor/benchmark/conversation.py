"""Conversation of user turns and the answers so far, as token ids: by the target's chat template, or plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reanchor.chat import chat_template, encode_chat


@dataclass(frozen=True)
class Conversation:
    """How prompts of one run are put into tokens; `variables` are the chat template's, such as its thinking mode."""

    tokenizer: Any
    raw: bool = False
    variables: dict[str, bool] = field(default_factory=dict)

    def encode(self, turns: Sequence[str], answers: Sequence[str]) -> list[int]:
        """turns: one more than answers."""
        assert len(turns) == len(answers) + 1
        if self.raw or chat_template(self.tokenizer) is None:
            said = [text for pair in zip(turns, answers, strict=False) for text in pair]
            return list(self.tokenizer("\n\n".join([*said, turns[-1]])).input_ids)
        messages = []
        for turn, answer in zip(turns, answers, strict=False):
            messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": turns[-1]})
        return encode_chat(self.tokenizer, messages, self.variables)

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)
