"""The room as an attention implementation of transformers: inside a scope, any model that takes its
attention from the library's interface verifies through our backends, with no line of its modelling code
copied. Outside, nothing is changed.

A call reaches the attention function as a keyword of the model's forward, which hands its keywords on to
every layer: `with scope: model(ids, ..., **scope.keywords(sees))`. The cache must return rows in token
order, the tail behind the prefix, for sliding layers too. While a scope is open its model computes nothing
but such calls.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from reanchor.attention.problem import Problem, Visibility
from reanchor.attention.table import Attention

NAME = "reanchor_tail"  # how transformers calls us while a scope is open
KEYWORD = "reanchor_call"
LAYER_TYPES = ("full_attention", "sliding_attention")
# Layers that do not attend, or have a recurrence beside plain attention: their attention is all that matters here.
OTHER_TYPES = ("linear_attention", "conv", "mamba", "hybrid", "moe", "mlp")
KNOWN = (
    "eager",
    "sdpa",
    "flex_attention",
    "None",
    "reanchor_tail",
)  # attention that is the definition's, plain
# Keywords by which a model changes its scores in ways this room does not know.
UNKNOWN_SCORES = ("s_aux", "position_bias", "head_mask")
_open_scopes = 0
_lock = threading.Lock()


@dataclass(frozen=True)
class AttentionCall:
    """What one forward of the model is about."""

    attention: Attention
    sees: Visibility


def attention_refusal(model: nn.Module) -> str | None:
    """Why a model cannot verify through this room, or None."""
    name = type(model).__name__
    layers = attention_modules(model)
    if not layers or not (getattr(model, "_supports_attention_backend", False) or asks_interface(layers)):
        return f"{name} does not take its attention from transformers' attention interface"
    foreign = foreign_attention(model)
    if foreign is not None:
        return f"{name} attends by {foreign!r}, which is not transformers' own"
    if ignores_soft_cap(model):
        return "transformers' sdpa leaves the soft cap of the scores out, ours would not; load it with eager attention"
    for layer in layers:
        types = set(getattr(layer.config, "layer_types", None) or ())
        unknown = sorted(types - {*LAYER_TYPES, *OTHER_TYPES})
        if unknown:
            return f"{name} has layers of type {', '.join(map(str, unknown))}"
        kind: Any = type(layer)
        passed = passed_keywords(kind)
        scores = sorted(passed & set(UNKNOWN_SCORES))
        if scores or getattr(layer, "sinks", None) is not None:
            return f"{name} passes {', '.join(scores) or 'attention sinks'}, which no backend computes"
        if has_window(layer) and "sliding_window" not in passed:
            return f"{name} keeps its sliding window in the mask alone"
    return None


def asks_interface(layers: list[Any]) -> bool:
    """Do the attention layers of a model with recurrent ones look their function up in transformers' table? Such models
    do not say so.
    """
    mixed = any(set(getattr(layer.config, "layer_types", None) or ()) & {*OTHER_TYPES} for layer in layers)
    return mixed and all(
        "ALL_ATTENTION_FUNCTIONS" in inspect.unwrap(type(layer).forward).__code__.co_names for layer in layers
    )


@functools.cache
def passed_keywords(layer: Any) -> frozenset[str]:
    """The keywords by which an attention layer calls its interface, read in its source; none without a source."""
    try:
        source = textwrap.dedent(inspect.getsource(layer.forward))
    except (OSError, TypeError):
        return frozenset()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [
        call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "attention_interface"
    ]
    return frozenset(keyword.arg for call in named for keyword in call.keywords if keyword.arg)


def has_window(layer: Any) -> bool:
    """Whether the config gives this layer a sliding window."""
    types = getattr(layer.config, "layer_types", None)
    if types:
        return types[layer.layer_idx] == "sliding_attention"
    return bool(getattr(layer.config, "sliding_window", None)) and getattr(
        layer.config, "use_sliding_window", True
    )


def foreign_attention(model: nn.Module) -> str | None:
    """The name of an attention that somebody registered and that may compute anything, or None."""
    chosen = str(model.config._attn_implementation)  # type: ignore[union-attr]
    kernel = "/" in chosen or "flash" in chosen  # the same function, faster
    return None if kernel or chosen in KNOWN else chosen


def ignores_soft_cap(model: nn.Module) -> bool:
    """Does the model's own attention compute without the soft cap its config names? transformers before 5.20 did."""
    config = model.config.get_text_config()  # type: ignore[operator, union-attr]
    return (
        config._attn_implementation == "sdpa" and getattr(config, "attn_logit_softcapping", None) is not None
    )


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The decoder's attention layers: what has an index, a scale and a config."""
    parts = ("layer_idx", "scaling", "config")
    return [module for module in model.modules() if all(hasattr(module, part) for part in parts)]


class PatchedAttention:
    """Opens our attention for one model; cheap enough to enter and leave every round."""

    def __init__(self, model: nn.Module, attention: Attention) -> None:
        reason = attention_refusal(model)
        if reason is not None:
            raise ValueError(f"{reason}; verify through the model's own attention and a dense mask instead")
        self.attention = attention
        layers = attention_modules(model)
        configs: list[Any] = [*(layer.config for layer in layers), model.config]
        self.configs = list({id(config): config for config in configs}.values())
        self.before: list[list[Any]] = []

    def keywords(self, sees: Visibility) -> dict[str, AttentionCall]:
        return {KEYWORD: AttentionCall(self.attention, sees)}

    def __enter__(self) -> PatchedAttention:
        register()
        self.before.append([config._attn_implementation_internal for config in self.configs])
        self.assign([NAME] * len(self.configs))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.assign(self.before.pop())
        unregister()

    def assign(self, names: list[Any]) -> None:
        # Not the public setter: it would write to the configs of other parts as well, a vision tower's say.
        for config, name in zip(self.configs, names, strict=True):
            config._attn_implementation_internal = name


def register() -> None:
    global _open_scopes
    with _lock:
        _open_scopes += 1
        ALL_ATTENTION_FUNCTIONS[NAME] = forward
        ALL_MASK_ATTENTION_FUNCTIONS[NAME] = no_mask


def unregister() -> None:
    global _open_scopes
    with _lock:
        _open_scopes -= 1
        if _open_scopes == 0:
            del ALL_ATTENTION_FUNCTIONS[NAME]
            del ALL_MASK_ATTENTION_FUNCTIONS[NAME]


def no_mask(*args: Any, **kwargs: Any) -> None:
    """Visibility comes with the call."""


def forward(
    module: nn.Module,
    query: Tensor,  # [1, Hq, N, D]
    key: Tensor,  # [1, Hkv, L + T or more, D]
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """transformers' attention contract: output [1, N, Hq, D] and no weights."""
    call = keywords.get(KEYWORD)
    check(module, query, key, value, sliding_window, call, keywords)
    assert call is not None
    problem = Problem(
        queries=query[0].transpose(0, 1),
        keys=key[0],
        values=value[0],
        sees=call.sees.on(query.device),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
    )
    return call.attention.attend(problem)[None].contiguous(), None


def check(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sliding_window: int | None,
    call: AttentionCall | None,
    keywords: dict[str, Any],
) -> None:
    """Refuse what this room would compute wrongly."""
    name = type(module).__name__
    if call is None:
        raise ValueError(
            f"{name} was called inside a tree-attention scope without `{KEYWORD}`; pass scope.keywords(...)"
        )
    if query.shape[0] != 1:
        raise ValueError(f"tree attention serves batch size 1, got {query.shape[0]}")
    if key.shape != value.shape:
        raise ValueError(
            f"{name} has keys {tuple(key.shape)} and values {tuple(value.shape)}; both must be one shape"
        )
    for unknown in UNKNOWN_SCORES:
        if keywords.get(unknown) is not None:
            raise ValueError(f"{name} passes `{unknown}`, which no attention backend computes")
    if getattr(module.config, "layer_types", None) and has_window(module) and sliding_window is None:
        raise ValueError(f"{name} is a sliding layer but passes no window")
    length = call.sees.host_length
    if length is not None and key.shape[2] < length + call.sees.tail:
        raise ValueError(
            f"the cache returned {key.shape[2]} rows for {length} committed and {call.sees.tail} new ones; "
            "it must keep every row, for sliding layers too"
        )
