"""The verifier on the fused forward: tree in, logits and features out, keys and values in the engine's tree cache.

It is a `Target` whose passes go through plain functions instead of HF's modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from reanchor.attention.problem import Problem, Visibility
from reanchor.attention.table import Attention
from reanchor.cache import TreeCache
from reanchor.core import Tree
from reanchor.fused.architecture import read_architecture
from reanchor.fused.graph_runner import GraphRunner
from reanchor.fused.rotary_tables import RotaryTables, Tables
from reanchor.fused.weights import Weights
from reanchor.layer import LayerShape, attention_output_and_mlp, normalize, project
from reanchor.linear import linear
from reanchor.target import Target, TargetOutput

# (shape, queries [N, heads, D], key and value rows [kv heads, rows, D]) -> [N, heads, D]
Attend = Callable[[LayerShape, Tensor, Tensor, Tensor], Tensor]
# (layer, keys, values [N, kv heads, D]) -> all key and value rows [kv heads, rows, D], these among them
Store = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


def silent(_message: str) -> None:
    pass


class FusedTarget(Target):
    """An HF causal LM run by its description. Raises Undescribed for a model that has none.

    graphs: verify in regions of fixed shapes, captured on CUDA.
    """

    forward_name = "fused"

    def __init__(
        self,
        model: PreTrainedModel,
        tap_layers: tuple[int, ...] = (),
        attention: str = "auto",
        graphs: bool = False,
        say: Callable[[str], None] = silent,
    ) -> None:
        super().__init__(model, tap_layers)
        self.attention = Attention(attention)  # whatever HF's modules would take: they are not asked
        self.graphs, self.say = graphs, say
        self.adopt()

    def adopt(self) -> None:
        """Take the model's weights as they are now."""
        self.architecture = read_architecture(self.model)
        self.weights = Weights(self.model, self.architecture)
        sizes = {shape.kind: shape.head_dim for shape in self.architecture.layers}
        self.rotary = RotaryTables(self.weights.rotary, sizes, self.weights.head_module.weight)
        self.regions = GraphRunner(self, self.device.type == "cuda" and self.graphs, self.say)

    def new_cache(self) -> TreeCache:
        if not self.weights.current():
            self.adopt()
        cache = super().new_cache()
        return self.regions.new_cache(cache) if self.graphs else cache

    @torch.no_grad()
    def prefill(self, prompt: Tensor, cache: TreeCache) -> TargetOutput:
        """Commit a prompt [P]; logits of its last position only. HF's path where a mask is more than causal."""
        if any(
            shape.softcap or (shape.window or len(prompt)) < len(prompt) for shape in self.architecture.layers
        ):
            output = super().prefill(prompt, cache)
            self.weights.release()
            return output
        positions = torch.arange(len(prompt), device=prompt.device)
        hidden, features = self.run(
            prompt, self.turns(positions, cache), self.behind(cache, len(prompt)), causal
        )
        cache.commit(list(range(len(prompt))))
        return TargetOutput(self.logits(hidden[-1:]), features)

    @torch.no_grad()
    def verify(self, tree: Tree, cache: TreeCache) -> TargetOutput:
        """Every node of a tree in one pass; commits nothing."""
        outcome = self.regions.verify(tree, cache) if self.graphs else None
        if outcome is not None:
            return TargetOutput(*outcome)
        tokens = torch.tensor(tree.tokens, device=self.device)
        sees = Visibility.pack(tree.ancestry(), tree.depths, cache.length, self.device)
        store = self.behind(cache, len(tree))
        hidden, features = self.run(
            tokens, self.turns(sees.depths + cache.length, cache), store, self.over(sees)
        )
        return TargetOutput(self.logits(hidden), features)

    def run(self, tokens: Tensor, turns: Tables, store: Store, attend: Attend) -> tuple[Tensor, Tensor]:
        """Last states [N, H] and features [N, Dc]."""
        hidden = self.weights.embed(tokens)
        taps = {-1: hidden}
        for index, (shape, weights) in enumerate(
            zip(self.architecture.layers, self.weights.layers, strict=True)
        ):
            rows = normalize(hidden, weights.attention_norm, shape.eps)
            queries, keys, values = project(rows, weights, shape, *turns[shape.kind])
            attended = attend(shape, queries, *store(index, keys, values))
            hidden = attention_output_and_mlp(hidden, attended, weights, shape)
            if index in self.tap_layers:
                taps[index] = hidden
        features = [taps[layer] for layer in self.tap_layers]
        return hidden, torch.cat(features, -1) if features else hidden[:, :0]

    def turns(self, positions: Tensor, cache: TreeCache) -> Tables:
        self.rotary.reserve(max(cache.capacity, cache.length + len(positions)))
        return self.rotary.at(positions)

    def behind(self, cache: TreeCache, rows: int) -> Store:
        """Writes rows behind the committed ones."""
        cache.reserve(rows)
        start, end = cache.length, cache.length + rows

        def store(index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            shape = keys[:0].transpose(0, 1)[None]
            (key_rows,), (value_rows,) = cache.place(index, shape, shape)
            key_rows[:, start:end] = keys.transpose(0, 1)
            value_rows[:, start:end] = values.transpose(0, 1)
            return key_rows, value_rows

        return store

    def over(self, sees: Visibility) -> Attend:
        """The attention room under one visibility."""

        def attend(shape: LayerShape, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return self.attention.attend(
                Problem(queries, keys, values, sees, shape.scale, shape.window, shape.softcap)
            )

        return attend

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, V] of last states [N, H]."""
        logits = linear(normalize(hidden, self.weights.norm, self.architecture.eps), *self.weights.head)
        cap = self.architecture.softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def forward_report(self) -> dict[str, Any]:
        report = {**super().forward_report(), "packed": bool(self.weights.packed)}
        return {**report, "graphs": self.regions.report()} if self.graphs else report


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
