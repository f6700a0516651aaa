"""A whole pair on disk, of no size: a random target with a tokenizer of single characters, and a drafter for it."""

from __future__ import annotations

import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .drafters import writer

END, UNKNOWN = "<end>", "?"
CHARACTERS = [c for c in string.printable if c not in "\r\t\v\f"]  # 96 with <end>: the vocabulary of writer
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}-{% endif %}a:"
)


def tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate([END, *CHARACTERS][: writer.V])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, unk_token=UNKNOWN)
    wrapped.chat_template = template
    return wrapped


def write_target(folder: Path, template: str | None = TEMPLATE) -> Path:
    target = writer.tiny_target().float()
    target.generation_config.eos_token_id = 0
    target.generation_config.pad_token_id = 0
    target.save_pretrained(folder)
    tokenizer(template).save_pretrained(folder)
    return folder


def write_drafter(folder: Path) -> Path:
    return writer.dflash().save(folder)
