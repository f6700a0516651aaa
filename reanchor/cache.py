"""The target's keys and values: committed rows stay in place, tree rows stand behind them until one path is kept.
Recurrent layers have a state instead, which moves on along that path.

It is an HF cache, so any HF model writes to it; it knows nothing of trees beyond the path it is told to keep.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PretrainedConfig
from transformers.cache_utils import CacheLayerMixin

from reanchor.recurrent.patched_layers import BOTH, NEITHER, STATEFUL
from reanchor.recurrent.state import NoLayer, StateLayer, Verified

SLACK = 256  # rows beyond those asked for, so that a long prompt is not doubled by the first round after it


class TreeLayer(CacheLayerMixin):
    """One layer's view of a `TreeCache`. Sliding-window layers keep all rows too; their mask holds the
    window.
    """

    is_croppable = True
    is_sliding = False

    def __init__(self, cache: TreeCache, index: int) -> None:
        super().__init__()
        self.belong_to(cache)
        self.index = index

    def belong_to(self, cache: TreeCache) -> None:
        """Without a cycle: rows are free as soon as nobody holds the cache, so that the next decode has them."""
        self._cache: weakref.ref[TreeCache] | None = weakref.ref(cache)

    @property
    def cache(self) -> TreeCache:
        cache = self._cache() if self._cache is not None else None
        assert cache is not None, "a layer is asked while somebody holds its cache"
        return cache

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cache": None}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self.cache.place(self.index, key_states, value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write rows behind the committed ones, without committing them. key_states: [1, heads, T, head_dim]"""
        if self.cache.handed_over and self is self.cache.own_layers[0]:
            self.cache.reserve(key_states.shape[2])
        if not self.is_initialized:
            TreeLayer.lazy_initialization(self, key_states, value_states)
        assert self.keys is not None and self.values is not None
        start, end = self.cache.length, self.cache.length + key_states.shape[2]
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        if self.cache.handed_over and self is self.cache.own_layers[-1]:
            self.cache._set_length(end)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.cache.length

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:  # the name of get_max_length before transformers 5.20
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Nothing to do: all layers share the length that `TreeCache.crop` shortens."""


class TreeStateLayer(StateLayer, TreeLayer):
    """A layer with keys and values and a recurrent state beside them."""

    is_croppable = False

    def __init__(self, cache: TreeCache, index: int) -> None:
        TreeLayer.__init__(self, cache, index)
        StateLayer.__init__(self)

    def lazy_initialization(self, *rows: Tensor, **states: Any) -> None:
        """transformers gives keys and values by place and states by name."""
        if rows:
            TreeLayer.lazy_initialization(self, *rows)
        else:
            StateLayer.lazy_initialization(self, **states)


class TreeCache(Cache):
    """Stacked key/value buffers and one length shared by all layers.

    Layers of equal shape share one buffer [layers, 2, 1, heads, capacity, head_dim], so that keeping a path
    is two operations however many layers there are. `reserve` before every forward pass; `commit` after it.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        text = config.get_text_config()
        shared = getattr(text, "num_kv_shared_layers", None) or 0
        own = text.num_hidden_layers - shared
        types = getattr(text, "layer_types", None) or ["full_attention"] * own
        self.kinds: list[str] = list(types[:own])
        self.length = 0
        self.capacity = 0
        self._device_length: Tensor | None = None
        self.handed_over = False
        self.buffers: dict[str, Tensor] = {}  # kind of layer -> [layers, 2, 1, heads, capacity, head_dim]
        layers = [self._layer(index) for index in range(own)]
        self.own_layers = [layer for layer in layers if isinstance(layer, TreeLayer)]
        stateful = [index for index, kind in enumerate(self.kinds) if kind in (*STATEFUL, *BOTH)]
        self.states: dict[int, StateLayer] = {
            index: layer for index, layer in enumerate(layers) if index in stateful
        }
        self.held: Mapping[int, Verified] | None = (
            None  # what recurrent layers keep of the tree verified last
        )
        super().__init__(layers=layers)

    def _layer(self, index: int) -> Any:
        kind = self.kinds[index]
        if kind in BOTH:
            return TreeStateLayer(self, index)
        if kind in NEITHER:
            return NoLayer()
        return StateLayer() if kind in STATEFUL else TreeLayer(self, index)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for layer in self.own_layers:  # a copy's are its own
            layer.belong_to(self)

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows behind the committed ones, growing by doubling; what was verified is forgotten."""
        self.held = None
        if self.length + rows <= self.capacity:
            return
        self.capacity = max(2 * self.capacity, self.length + rows + SLACK)
        for kind, old in list(self.buffers.items()):
            shape = list(old.shape)
            shape[4] = self.capacity
            new = old.new_zeros(shape)
            new[:, :, :, :, : self.length] = old[:, :, :, :, : self.length]
            self.buffers[kind] = new
        for layer in self.own_layers:
            if layer.is_initialized:
                layer.keys, layer.values = self._rows(layer.index)

    def place(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Key and value buffers of a layer, each [1, heads, capacity, head_dim], made at the first write of
        its kind.
        """
        if keys.shape != values.shape:
            raise ValueError(
                f"layer {index} has keys {tuple(keys.shape)} and values {tuple(values.shape)} of different shapes; "
                "such attention is not supported, use plain HF generate"
            )
        kind = self.kinds[index]
        if kind not in self.buffers:
            _, heads, _, head_dim = keys.shape
            shape = (self.kinds.count(kind), 2, 1, heads, self.capacity, head_dim)
            self.buffers[kind] = keys.new_zeros(shape)
        return self._rows(index)

    def _rows(self, index: int) -> tuple[Tensor, Tensor]:
        kind = self.kinds[index]
        keys, values = self.buffers[kind][self.kinds[:index].count(kind)]
        return keys, values

    def device_length(self) -> Tensor:
        """[1] int32: `length` where the rows are, for regions that may not ask the host. Kept in step from here on."""
        if self._device_length is None:
            device = next(iter(self.buffers.values())).device
            self._device_length = torch.tensor([self.length], dtype=torch.int32, device=device)
        return self._device_length

    def commit_on_device(self, path: Tensor, count: Tensor) -> None:
        """`commit` with fixed shapes and nothing read on the host, two launches for each kind of layer.

        path: [R], its first `count` entries the rows to keep, entry r being r from there on; count: [1]. The host's
        `length` stays behind until `catch_up` is told the count.
        """
        length = self.device_length()
        target = length + torch.arange(len(path), device=path.device)
        for buffer in self.buffers.values():
            buffer.index_copy_(4, target, buffer.index_select(4, length + path))
        length += count

    def catch_up(self, count: int) -> None:
        """The host learns what `commit_on_device` committed."""
        self.length += count

    def hand_over(self) -> None:
        """Decoding is over: passes of HF commit their own rows from here on, as in HF's caches."""
        self.handed_over, self.held = True, None
        for state in self.states.values():
            state.hand_over()
        for layer in self.own_layers:
            layer.keys, layer.values = self._rows(layer.index)
            layer.is_initialized = True

    def _set_length(self, length: int) -> None:
        self.length = length
        if self._device_length is not None:
            self._device_length.fill_(length)

    def commit(self, path: list[int]) -> None:
        """Keep, of the rows behind the committed ones, those of `path` in that order; drop the rest. States of
        recurrent layers move on along it, all of them or none; a prompt's they have already.
        """
        moved = self._states_after(path) if self.states and self.length else {}
        keep = next((place for place, row in enumerate(path) if place != row), len(path))
        if keep < len(path):
            for buffer in self.buffers.values():
                source = torch.tensor(path[keep:], device=buffer.device) + self.length
                start, end = self.length + keep, self.length + len(path)
                buffer[:, :, :, :, start:end] = buffer.index_select(4, source)
        for index, state in moved.items():
            self.states[index].take(*state)
        self.held = None
        self._set_length(self.length + len(path))

    def hold(self, kept: Mapping[int, Verified]) -> None:
        """What the recurrent layers keep of a tree that was verified whole; `commit` chooses a path of it."""
        self.held = kept

    def _states_after(self, path: list[int]) -> dict[int, tuple[Tensor, Tensor | None]]:
        held = self.held or {}
        if held.keys() != self.states.keys():
            raise ValueError(
                "recurrent layers commit a path of the tree that was verified last, and none was"
            )
        places: dict[torch.device, Tensor] = {}
        moved = {}
        for index, kept in held.items():
            device = kept.rows.device
            if device not in places:
                places[device] = torch.tensor(path, device=device)
            moved[index] = self.states[index].after(kept, places[device])
        return moved

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last rows; HF passes their number as a negative count."""
        if self.states and tokens_to_remove:
            raise ValueError(
                f"cannot drop {abs(tokens_to_remove)} tokens: recurrent layers keep one state, which cannot go back; "
                "decode the shorter text again"
            )
        self._set_length(self.length - min(abs(tokens_to_remove), self.length))

    def reset(self) -> None:
        self.held = None
        for layer in self.states.values():
            StateLayer.reset(layer)
        self._set_length(0)
