"""Who is warned that the prompt's thinking mode is not the drafter's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reanchor.chat import default_thinking, thinking_option
from reanchor_cli.generate import warn_of_thinking

QWEN3 = "z-lab/Qwen3-8B-DFlash-b16"  # trained with thinking off


class Tokenizer:
    """A chat template that thinks by default, always, or never."""

    def __init__(self, switch: str | None, default: bool = True) -> None:
        self.switch, self.default = switch, default
        self.chat_template = f"{{% if {switch} %}}" if switch else "{{ messages }}"

    def get_chat_template(self) -> str:
        return self.chat_template

    def apply_chat_template(self, _messages: Any, **options: Any) -> str:
        thinking = options.get(self.switch, self.default) if self.switch else False
        return "<think>" if thinking else "<answer>"


@pytest.mark.parametrize(
    ("tokenizer", "mode"),
    [
        (Tokenizer("enable_thinking"), True),
        (Tokenizer("enable_thinking", default=False), False),
        (Tokenizer("thinking"), True),
        (Tokenizer(None), None),
    ],
)
def test_the_mode_a_prompt_is_in(tokenizer: Tokenizer, mode: bool | None) -> None:
    assert default_thinking(tokenizer) is mode


def test_the_switch_has_the_templates_name() -> None:
    assert thinking_option(Tokenizer("thinking"), False) == {"thinking": False}
    assert thinking_option(Tokenizer(None), None) == {}
    with pytest.raises(ValueError, match="knows no thinking mode"):
        thinking_option(Tokenizer(None), True)


@pytest.mark.parametrize(
    ("drafter", "thinking", "raw", "warned"),
    [
        (QWEN3, None, False, True),
        (QWEN3, True, False, True),
        (QWEN3, False, False, False),
        (QWEN3, None, True, False),
        ("somebody/else", None, False, False),
        (None, None, False, False),
    ],
)
def test_the_warning(
    drafter: str | None, thinking: bool | None, raw: bool, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pair: Any = SimpleNamespace(tokenizer=Tokenizer("enable_thinking"), drafter_name=drafter)
    warn_of_thinking(pair, {"thinking": thinking, "raw": raw})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("--no-thinking" in captured.err) == warned
