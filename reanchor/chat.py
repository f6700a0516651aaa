"""Chat rendering: messages to token ids by the tokenizer's chat template, with its switch of the thinking mode."""

from __future__ import annotations

import re
from typing import Any

from reanchor.foreign import theirs
from reanchor.limits import limited

SECONDS, MEMORY = 5.0, 512 << 20  # of a chat template
LONGEST = 64 << 20  # characters of a chat
RAW = "--raw goes without it"
_THINKING = re.compile(r"\b(enable_thinking|thinking)\b")  # the two names that chat templates give the switch


def chat_template(tokenizer: Any) -> str | None:
    """The default template; None for no tokenizer, and for one without."""
    return (tokenizer and tokenizer.chat_template and tokenizer.get_chat_template()) or None


def thinking_switch(tokenizer: Any) -> str | None:
    """The template's variable that turns thinking on and off; None where it has none."""
    found = _THINKING.search(chat_template(tokenizer) or "")
    return found[1] if found else None


def thinking_option(tokenizer: Any, thinking: bool | None) -> dict[str, bool]:
    """Thinking mode as a variable of the template; None leaves it to the template.

    Raises:
        ValueError: the template knows no thinking mode.
    """
    if thinking is None:
        return {}
    switch = thinking_switch(tokenizer)
    if switch is None:
        raise ValueError(
            "the target's chat template knows no thinking mode; drop --thinking or --no-thinking"
        )
    return {switch: thinking}


def default_thinking(tokenizer: Any) -> bool | None:
    """The mode a chat is rendered in when nothing is said of it; None where the template knows none."""
    switch = thinking_switch(tokenizer)
    if switch is None:
        return None
    message = [{"role": "user", "content": "a"}]
    return render_chat(tokenizer, message) == render_chat(tokenizer, message, {switch: True})


def render_chat(
    tokenizer: Any, messages: list[dict[str, str]], variables: dict[str, bool] | None = None
) -> str:
    """The chat as text, up to where the answer begins.

    A template is a program from outside, of bounded time and memory. Raises ValueError for one that refuses the
    messages, or never ends.
    """
    with theirs("the target's chat template refuses this prompt", RAW), limited(SECONDS, MEMORY):
        chat: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **(variables or {})
        )
    if len(chat) > LONGEST:
        raise ValueError(f"the target's chat template makes {len(chat)} characters of this prompt; {RAW}")
    return chat


def encode_chat(
    tokenizer: Any, messages: list[dict[str, str]], variables: dict[str, bool] | None = None
) -> list[int]:
    """Token ids of a chat; the template brings the special tokens."""
    text = render_chat(tokenizer, messages, variables)
    return list(tokenizer(text, add_special_tokens=False).input_ids)
