"""What a caller may ask `generate` for: every argument is used as Hugging Face uses it, or refused by name.

HF's own generate accepts whatever the model's forward accepts and hands it on; here nothing but token ids and their
attention mask reaches the target, so anything else would change no token in silence.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

PLAIN_HF = "use the target's own generate"
_DRAFTING = "it belongs to another way of drafting"
_CACHE = "the target's keys and values are kept in a cache that a tree can be verified against"
MODES: dict[str, tuple[tuple[Any, ...], str]] = {  # what may be said of each, the usual value first
    "num_beams": ((1,), "beam search keeps several hypotheses"),
    "num_beam_groups": ((1,), "group beam search keeps several hypotheses"),
    "penalty_alpha": ((None,), "contrastive search scores candidates by hidden states"),
    "dola_layers": ((None,), "DoLa needs the logits of other layers"),
    "constraints": ((None,), "constrained beam search keeps several hypotheses"),
    "force_words_ids": ((None,), "constrained beam search keeps several hypotheses"),
    "prompt_lookup_num_tokens": ((None,), "prompt lookup is another way of drafting"),
    "guidance_scale": ((None, 1, 1.0), "guidance runs the target a second time for every token"),
    "output_attentions": ((False,), "attention maps of a tree are not those of a sequence"),
    "output_hidden_states": ((False,), "only the layers the drafter reads are kept"),
    "use_cache": ((True,), "a tree is verified against cached keys and values"),
    "cache_implementation": ((None, "dynamic", "hybrid"), _CACHE),
    "cache_config": ((None,), _CACHE),
    "max_cache_len": ((None,), _CACHE),
    "prefill_chunk_size": ((None,), "the prompt is read in one pass"),
    "token_healing": ((False,), "it rewrites the end of the prompt"),
    "use_mtp": ((None, False), _DRAFTING),
    "speculation_type": ((None,), _DRAFTING),
    "assistant_early_exit": ((None,), _DRAFTING),
    "compile_config": ((None,), "the passes over a tree are not compiled by generate"),
    "continuous_batching_config": ((None,), "the rows of a batch are decoded one after another"),
}
# Of assisted decoding: without an assistant they change nothing in HF either, so only a caller's wish is refused.
ASSISTED = (
    "assistant_confidence_threshold",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "target_lookbehind",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "max_matching_ngram_size",
)
_WHOLE = "the drafter has not seen the features of its rows; pass the whole prompt"
_GUIDED = "guidance runs the target a second time for every token"
REFUSED = {
    "assistant_model": "the drafter is given to ReAnchorGenerator",
    "assistant_tokenizer": "the drafter is given to ReAnchorGenerator",
    "negative_prompt_ids": _GUIDED,
    "negative_prompt_attention_mask": _GUIDED,
    "custom_generate": "ReAnchorGenerator is one itself",
    "inputs_embeds": "the drafter needs token ids",
    "past_key_values": _WHOLE,
    "cache": _WHOLE,
    "cache_params": _WHOLE,
    "synced_gpus": "every process decodes for itself",
    "trust_remote_code": "no code of a checkpoint is run",
}
TAKEN = {"inputs", "input_ids", "attention_mask", "tokenizer", "prefix_allowed_tokens_fn"}


def check_arguments(inputs: Any, arguments: dict[str, Any]) -> None:
    """ValueError for what is neither a field of a generation config nor used exactly, naming it."""
    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")} | TAKEN
    for name, value in arguments.items():
        if value is None or value is False and name in REFUSED:
            continue
        if name in REFUSED:
            raise ValueError(f"{name} is not supported: {REFUSED[name]}")
        exact = _EXACT.get(name)
        if exact is not None:
            exact(name, value, arguments)
        elif name not in known:
            raise ValueError(
                f"{name} is not supported: the target is given token ids and their attention mask only, so it would "
                f"have no effect; leave it out (is it misspelt?), or {PLAIN_HF}"
            )
    for name, given in (
        ("inputs", inputs),
        *((each, arguments.get(each)) for each in ("inputs", "input_ids")),
    ):
        if given is not None and not isinstance(given, Tensor):
            raise ValueError(
                f"{name} must be a tensor of token ids [B, P], got {type(given).__name__}; a tokenizer's output is "
                "given as generate(**encoded)"
            )


def settled(
    model: PreTrainedModel, config: GenerationConfig | None, arguments: dict[str, Any]
) -> dict[str, Any]:
    """The caller's arguments, with what overrides a mode that only the checkpoint's own generation config names.

    Raises ValueError for a mode that the caller asks for and that can't be exact here.
    """
    asked = None if config is model.generation_config else config
    for name in ASSISTED:
        value = arguments.get(name, getattr(asked, name, None))
        if value is not None:
            raise ValueError(f"{name}={value!r} is not supported: {_DRAFTING}; {PLAIN_HF}")
    settled = dict(arguments)
    for name, (usual, reason) in MODES.items():
        value = arguments.get(name, getattr(asked, name, None))
        if value is not None:
            refuse_mode(name, value)
            continue
        left = getattr(model.generation_config, name, None)
        if left is not None and left not in usual:
            settled[name] = usual[0]
            warnings.warn(
                f"the checkpoint's generation config has {name}={left!r}, which is not followed: {reason}",
                stacklevel=3,
            )
    return settled


def refuse_mode(name: str, value: Any) -> None:
    usual, reason = MODES[name]
    if value is not None and value not in usual:
        raise ValueError(f"{name}={value!r} is not supported: {reason}; {PLAIN_HF}")


def check_positions(name: str, value: Tensor, arguments: dict[str, Any]) -> None:
    """Only those that every prompt has by itself."""
    mask = arguments.get("attention_mask")
    usual = (
        value.new_tensor(range(value.shape[-1])).expand_as(value)
        if mask is None
        else (mask.long().cumsum(-1) - 1).clamp(min=0).to(value)
    )
    visible = slice(None) if mask is None else mask.bool()
    if usual.shape != value.shape or not bool((usual == value)[visible].all()):
        raise ValueError(
            f"{name} other than those of an unbroken prompt are not supported: the rows of a tree are counted from the "
            f"first visible token; leave them out, or {PLAIN_HF}"
        )


def check_text_only(name: str, value: Tensor, _arguments: dict[str, Any]) -> None:
    """A processor marks text by 0, which is what a model takes where nothing is said."""
    if bool(value.any()):
        raise ValueError(
            f"{name} marks tokens of an image or of another segment, which is not supported: the target is given text "
            f"only; {PLAIN_HF}"
        )


_EXACT: dict[str, Callable[[str, Tensor, dict[str, Any]], None]] = {
    "position_ids": check_positions,
    "token_type_ids": check_text_only,
    "mm_token_type_ids": check_text_only,
}
