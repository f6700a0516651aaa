"""From user turns and the answers so far to token ids: the target's chat template, or plain text without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Conversation:
    """How prompts of one run are put into tokens; `switch` is the template's thinking mode."""

    tokenizer: Any
    raw: bool = False
    switch: dict[str, bool] = field(default_factory=dict)

    def encode(self, turns: Sequence[str], answers: Sequence[str]) -> list[int]:
        """turns: one more than answers."""
        assert len(turns) == len(answers) + 1
        if self.raw or not self.tokenizer.chat_template:
            said = [text for pair in zip(turns, answers, strict=False) for text in pair]
            return list(self.tokenizer("\n\n".join([*said, turns[-1]])).input_ids)
        messages = []
        for turn, answer in zip(turns, answers, strict=False):
            messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": turns[-1]})
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self.switch
        )
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)
