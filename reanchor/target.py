"""The verifier: an HF causal LM asked about a whole tree in one pass, with the tapped layers' outputs as
features.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from reanchor.attention.huggingface import PatchedAttention, attention_refusal
from reanchor.attention.problem import Visibility
from reanchor.attention.table import Attention
from reanchor.cache import TreeCache
from reanchor.core import Tree
from reanchor.placement import execution_device
from reanchor.recurrent import patched_layers as recurrent
from reanchor.recurrent.lineage import Lineage
from reanchor.recurrent.patched_layers import BOTH, NEITHER, STATEFUL

_ATTENTION = {"full_attention", "sliding_attention"}
_RECURRENT = {*STATEFUL, *BOTH, *NEITHER}
_SUPPORTED = (
    "only full and sliding-window attention and known recurrent layers can verify a tree in one pass; use plain HF "
    "generate"
)


_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_making = threading.Lock()


def model_lock(model: nn.Module) -> threading.RLock:
    """The lock under which a model has our hooks and our attention: decodes in several threads take turns by pass."""
    with _making:
        return _locks.setdefault(model, threading.RLock())


@dataclass(frozen=True)
class TargetOutput:
    """Logits of the asked rows and the features of every row of one pass."""

    logits: Tensor  # [N, V]; [1, V] after a prefill
    features: Tensor  # [N, Dc]; [P, Dc] after a prefill; [N, 0] without taps


def end_ids(model: PreTrainedModel) -> tuple[int, ...]:
    """Its end-of-sequence ids, none, one or several."""
    ends = model.generation_config.eos_token_id
    return () if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)


def refuse_unsupported(model: PreTrainedModel) -> None:
    """Raise ValueError for a target whose branches cannot be told apart in one pass, before anything runs."""
    name = type(model).__name__
    text = model.config.get_text_config()
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder; a decoder-only causal LM is needed")
    kinds = set(getattr(text, "layer_types", None) or ()) - _ATTENTION - _RECURRENT
    if kinds:
        raise ValueError(f"{name} has layers with {', '.join(sorted(kinds))}: {_SUPPORTED}")
    if stateful(model) and (reason := recurrent.refusal(model)) is not None:
        raise ValueError(f"{name} cannot be verified by trees: {reason}; use plain HF generate")
    if getattr(model.get_decoder(), "layers", None) is None:
        raise ValueError(
            f"{name}'s decoder has no list of layers to read features from; use plain HF generate"
        )
    for adapter in (getattr(model, "peft_config", None) or {}).values():
        if getattr(adapter, "is_prompt_learning", False):
            kind = str(getattr(adapter.peft_type, "value", adapter.peft_type))
            raise ValueError(
                f"{name} has an adapter of PEFT's {kind}, which adds rows that no tree counts; use LoRA, "
                "or plain HF generate"
            )
    if model.get_output_embeddings() is None:
        raise ValueError(f"{name} has no output head; load it with AutoModelForCausalLM")


def stateful(model: PreTrainedModel) -> bool:
    """Does it have recurrent layers?"""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    found = kinds & {*STATEFUL, *BOTH} or getattr(model, "_is_stateful", False)
    return bool(found) or bool(recurrent.recurrent_modules(model))


def refuse_nan(logits: Tensor) -> None:
    """Raise ValueError where the target gives no logits a token could be chosen by."""
    if bool(logits.isnan().any()):
        raise ValueError(
            "the target's logits are NaN: its weights are damaged, or overflow in this dtype; fetch it again, or load "
            "it in float32"
        )


@contextmanager
def tapped(
    layers: nn.ModuleList, taps: Sequence[int], take: Callable[[int, Tensor], object]
) -> Iterator[None]:
    """While the context lasts, `take` is given each tapped layer and its raw output [B, S, H], pass by pass; layer -1
    is what the first layer is given.
    """
    handles = []

    def take_input(_module: nn.Module, args: tuple[Tensor, ...], keywords: dict[str, Any]) -> None:
        take(-1, args[0] if args else keywords["hidden_states"])

    if -1 in taps:
        handles.append(layers[0].register_forward_pre_hook(take_input, with_kwargs=True))
    for layer in set(taps) - {-1}:

        def take_output(
            _module: nn.Module, _args: object, output: Tensor | tuple[Tensor], layer: int = layer
        ) -> None:
            take(layer, output if isinstance(output, Tensor) else output[0])

        handles.append(layers[layer].register_forward_hook(take_output))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Target:
    """An HF causal LM and the layers a drafter reads.

    Trees are verified by our attention where the model takes its own from transformers' interface, else by the
    model's own under a dense mask; `attention.refused` then says why.
    """

    forward_name = "transformers"
    fused_refusal: str | None = None  # why the fused forward would not have this model, where it was asked

    def __init__(
        self, model: PreTrainedModel, tap_layers: tuple[int, ...] = (), attention: str = "auto"
    ) -> None:
        refuse_unsupported(model)
        self.attention = Attention(attention, attention_refusal(model))
        self.scope = PatchedAttention(model, self.attention) if self.attention.refused is None else None
        self.recurrent = recurrent.Scope(model) if stateful(model) else None
        self.model, self.alone = model, model_lock(model)
        self.layers: nn.ModuleList = model.get_decoder().layers
        outside = [layer for layer in tap_layers if not -1 <= layer < len(self.layers)]
        if outside:
            raise ValueError(
                f"the drafter reads target layers {outside}, but {type(model).__name__} has layers "
                f"0 to {len(self.layers) - 1}; pair the drafter with the target it was trained for"
            )
        self.tap_layers = tuple(tap_layers)
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        text = model.config.get_text_config()
        self.window: int | None = getattr(text, "sliding_window", None)
        kinds = getattr(text, "layer_types", None)
        self.kinds: set[str] = (
            set(kinds) if kinds else {"sliding_attention" if self.window else "full_attention"}
        )
        if self.recurrent is not None:  # their masks are of the layers that attend
            both = {"full_attention"} if self.kinds & {*BOTH} else set()
            self.kinds = self.kinds & _ATTENTION | both

    @property
    def device(self) -> torch.device:
        return execution_device(self.model)

    @property
    def context_length(self) -> int | None:
        """Positions the model was made for, when its config says."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def vocabulary(self) -> int:
        """Rows of the input embedding, padding included."""
        embedding = self.model.get_input_embeddings()
        assert isinstance(embedding.weight, Tensor)
        return embedding.weight.shape[0]

    def forward_report(self) -> dict[str, Any]:
        """What a summary says: whose forward pass this is, and why it is not the fused one."""
        return {"used": self.forward_name, "declined": self.fused_refusal}

    def new_cache(self) -> TreeCache:
        return TreeCache(self.model.config)

    @torch.no_grad()
    def prefill(self, prompt: Tensor, cache: TreeCache) -> TargetOutput:
        """Commit a prompt [P] by HF's own path; logits of its last position only."""
        try:
            output = self._forward(prompt, cache, None, None, logits_to_keep=1)
        except BaseException:
            cache.reset()  # recurrent layers have taken a part of the prompt
            raise
        cache.commit(list(range(len(prompt))))
        return output

    @torch.no_grad()
    def verify(self, tree: Tree, cache: TreeCache) -> TargetOutput:
        """Every node of a tree in one pass; commits nothing."""
        if self.recurrent is None:
            return self._verify(tree, cache)
        lineage = Lineage.of(tree.parents, tree.ancestry(), self.device)
        with self.alone, self.recurrent.verifying(lineage) as kept:
            output = self._verify(tree, cache)
        cache.hold(kept)
        return output

    def _verify(self, tree: Tree, cache: TreeCache) -> TargetOutput:
        tokens = torch.tensor(tree.tokens, device=self.device)
        if self.scope is None:
            depths = torch.tensor(tree.depths, device=self.device)
            mask = self._mask(tree, depths, cache.length) if len(tree) > 1 else None
            return self._forward(tokens, cache, cache.length + depths, mask, logits_to_keep=0)
        sees = Visibility.pack(tree.ancestry(), tree.depths, cache.length, self.device)
        with self.alone, self.scope:
            keywords = self.scope.keywords(sees)
            return self._forward(
                tokens, cache, sees.depths + cache.length, None, logits_to_keep=0, **keywords
            )

    def _forward(
        self,
        tokens: Tensor,
        cache: TreeCache,
        positions: Tensor | None,
        mask: Tensor | dict[str, Tensor | None] | None,
        logits_to_keep: int,
        **keywords: Any,
    ) -> TargetOutput:
        cache.reserve(len(tokens))
        if positions is None:
            positions = torch.arange(len(tokens), device=tokens.device)
        taps: dict[int, Tensor] = {}
        with self.alone, tapped(self.layers, self.tap_layers, taps.__setitem__):
            output = self.model(
                input_ids=tokens[None],
                position_ids=positions[None],
                attention_mask=mask,
                use_cache=True,
                logits_to_keep=logits_to_keep,
                **{self._cache_name: cache},
                **keywords,
            )
        features = [taps[layer][0].to(self.device) for layer in self.tap_layers]
        nothing = output.logits.new_empty(len(tokens), 0)
        return TargetOutput(output.logits[0], torch.cat(features, -1) if features else nothing)

    def _mask(self, tree: Tree, depths: Tensor, committed: int) -> Tensor | dict[str, Tensor | None] | None:
        """Additive masks [1, 1, N, C + N]: all committed rows within the window, then a node's ancestors and
        itself.
        """
        sees = torch.from_numpy(tree.ancestry()).to(self.device)  # [N, N]
        past = sees.new_ones(len(tree), committed)
        masks: dict[str, Tensor | None] = {}
        for kind in self.kinds:
            visible = torch.cat([past, sees], dim=1)
            if (
                kind == "sliding_attention"
                and self.window is not None
                and self.window <= committed + max(tree.depths)
            ):
                keys = torch.cat([torch.arange(committed, device=self.device), committed + depths])
                visible &= (committed + depths)[:, None] - keys[None] < self.window
            bias = torch.zeros(visible.shape, dtype=self.model.dtype, device=self.device)
            masks[kind] = bias.masked_fill_(~visible, torch.finfo(bias.dtype).min)[None, None]
        if self.recurrent is not None:
            return {**masks, **dict.fromkeys(STATEFUL)} if masks else None
        return masks if len(masks) > 1 else next(iter(masks.values()))
