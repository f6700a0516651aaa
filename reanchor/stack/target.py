"""The verifier on the lean stack: trie in, logits and features out, keys and values in the engine's tree cache.

It is a `Target` whose passes go through plain functions instead of HF's modules.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from reanchor.attention.problem import Problem, Visibility
from reanchor.attention.table import Attention
from reanchor.cache import TreeCache
from reanchor.core import Tree
from reanchor.stack.description import LayerShape, describe
from reanchor.stack.layer import project, score, transform
from reanchor.stack.rotary import RotaryTables
from reanchor.stack.weights import Weights
from reanchor.target import Target, TargetOutput

# (shape, queries [N, heads, D], key and value buffers [kv heads, rows, D]) -> [N, heads, D]
Attend = Callable[[LayerShape, Tensor, Tensor, Tensor], Tensor]


class LeanTarget(Target):
    """An HF causal LM run by its description. Raises Undescribed for a model that has none."""

    stack_name = "lean"

    def __init__(
        self, model: PreTrainedModel, tap_layers: tuple[int, ...] = (), attention: str = "auto"
    ) -> None:
        super().__init__(model, tap_layers)
        self.attention = Attention(attention)  # whatever HF's modules would take: they are not asked
        self.adopt()

    def adopt(self) -> None:
        """Take the model's weights as they are now."""
        self.stack = describe(self.model)
        self.weights = Weights(self.model, self.stack)
        sizes = {shape.kind: shape.head_dim for shape in self.stack.layers}
        self.rotary = RotaryTables(self.weights.rotary, sizes, self.weights.head.weight)

    def new_cache(self) -> TreeCache:
        if not self.weights.current():
            self.adopt()
        return super().new_cache()

    @torch.no_grad()
    def prefill(self, prompt: Tensor, cache: TreeCache) -> TargetOutput:
        """Commit a prompt [P]; logits of its last position only. HF's path where a mask is more than causal."""
        if any(shape.softcap or (shape.window or len(prompt)) < len(prompt) for shape in self.stack.layers):
            return super().prefill(prompt, cache)
        positions = torch.arange(len(prompt), device=prompt.device)
        hidden, features = self.run(prompt, positions, cache, causal)
        cache.commit(list(range(len(prompt))))
        return TargetOutput(self.logits(hidden[-1:]), features)

    @torch.no_grad()
    def verify(self, tree: Tree, cache: TreeCache) -> TargetOutput:
        """Every node of a tree in one pass; commits nothing."""
        tokens = torch.tensor(tree.tokens, device=self.device)
        sees = Visibility.pack(tree.ancestry(), tree.depths, cache.length, self.device)

        def attend(shape: LayerShape, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return self.attention.attend(
                Problem(queries, keys, values, sees, shape.scale, shape.window, shape.softcap)
            )

        hidden, features = self.run(tokens, sees.depths + cache.length, cache, attend)
        return TargetOutput(self.logits(hidden), features)

    def run(
        self, tokens: Tensor, positions: Tensor, cache: TreeCache, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """Last states [N, H] and features [N, Dc]; rows are written behind the committed ones."""
        start, end = cache.length, cache.length + len(tokens)
        cache.reserve(len(tokens))
        self.rotary.reserve(cache.capacity)
        turns = self.rotary.at(positions)
        hidden = self.weights.embed(tokens)
        taps = {-1: hidden}
        for index, (shape, weights) in enumerate(zip(self.stack.layers, self.weights.layers, strict=True)):
            queries, keys, values = project(hidden, weights, shape, self.stack.eps, *turns[shape.kind])
            key_rows, value_rows = self.buffers(cache, index, keys)
            key_rows[:, start:end] = keys.transpose(0, 1)
            value_rows[:, start:end] = values.transpose(0, 1)
            hidden = transform(hidden, attend(shape, queries, key_rows, value_rows), weights, self.stack)
            if index in self.tap_layers:
                taps[index] = hidden
        features = [taps[layer] for layer in self.tap_layers]
        return hidden, torch.cat(features, -1) if features else hidden[:, :0]

    def buffers(self, cache: TreeCache, index: int, keys: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's key and value rows [kv heads, capacity, D]; committed and new ones lie there."""
        row = keys[:0].transpose(0, 1)[None]
        key_rows, value_rows = cache.place(index, row, row)
        return key_rows[0], value_rows[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, V]"""
        return score(hidden, self.stack, self.weights.norm, self.weights.head)


def causal(shape: LayerShape, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Every row sees itself and the rows before it; they stand at the start of the buffers."""
    rows = len(queries)
    out = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        keys[None, :, :rows],
        values[None, :, :rows],
        is_causal=True,
        scale=shape.scale,
        enable_gqa=shape.heads != shape.kv_heads,
    )
    return out[0].transpose(0, 1)
