"""An HF decoder's weights as the layer function takes them: what is read together lies together.

The model is in memory once, and HF's module goes on working. Where its parameters lie on the pages of a mapped
checkpoint, matrices are packed (`packing.py`) and the pages given back; who reads the parameters all the same reads the
file. Elsewhere fused matrices are the only copy, and the parameters become views of them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from reanchor.fused.architecture import Architecture
from reanchor.fused.pages import Range, clean_files, drop, give_back, merged, pages_of, within, written
from reanchor.layer import Affine, LayerShape, LayerWeights
from reanchor.packing import forget, pack, packable, packed, version_of


class Weights:
    """All weights of a decoder. They are HF's own as long as `current()` says so."""

    def __init__(self, model: PreTrainedModel, description: Architecture) -> None:
        decoder: Any = model.get_decoder()
        self.model, self.description = model, description
        self.tensors = [*model.parameters(), *model.buffers()]
        self.embed: nn.Module = model.get_input_embeddings()
        self.rotary: nn.Module = decoder.rotary_emb
        self.head_module: Any = model.get_output_embeddings()
        self.sources: list[tuple[nn.Parameter, int, int]] = []  # parameter, its address, its version
        # what else was made of: norms that the layers have in another form, rotary frequencies, factors of layers
        self.copied: list[Tensor] = list(self.rotary.buffers())
        self.clean = clean_files() if self.device.type == "cpu" else []
        self.packed: list[Range] = []  # pages of what is packed
        self.layers = [
            self.layer(layer, shape) for layer, shape in zip(decoder.layers, description.layers, strict=True)
        ]
        for each in self.embed.parameters():
            self.watch(each)
        self.norm = self.norm_weight(decoder.norm)
        self.head = self.fused(self.head_module)
        self.values = flat(self.copied)
        self.packed = merged(self.packed)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # the allocator keeps what was fused from, which nothing here will ask for again

    @property
    def dtype(self) -> torch.dtype:
        return self.head_module.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.head_module.weight.device

    def current(self) -> bool:
        """Whether HF's tensors are still these: a model may be moved, cast, trained or given others meanwhile."""
        now = [*self.model.parameters(), *self.model.buffers()]
        same = len(now) == len(self.tensors) and all(map(operator.is_, now, self.tensors))
        decoder: Any = self.model.get_decoder()
        parts = decoder.rotary_emb is self.rotary and self.model.get_input_embeddings() is self.embed
        there = (same and parts) and all(
            parameter.data_ptr() == address and version_of(parameter) == version
            for parameter, address, version in self.sources
        )
        # an edit of `.data` has no version
        return there and not written(self.packed) and torch.equal(flat(self.copied), self.values)

    def watch(self, parameter: nn.Parameter) -> None:
        self.sources.append((parameter, parameter.data_ptr(), version_of(parameter)))

    def layer(self, layer: Any, shape: LayerShape) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        family = self.description.family
        if family.scaled:
            self.copied.append(layer.layer_scalar)
        norms = [self.norm_weight(layer.get_submodule(name)) for name in family.norms()]
        if family.sandwich:
            before, behind, before_mlp, behind_mlp = norms
        else:
            (before, before_mlp), behind, behind_mlp = norms, None, None
        return LayerWeights(
            qkv=self.fused(
                attention.q_proj, attention.k_proj, *([] if shape.keys_are_values else [attention.v_proj])
            ),
            out=self.fused(attention.o_proj),
            gate_up=self.fused(mlp.gate_proj, mlp.up_proj),
            down=self.fused(mlp.down_proj),
            attention_norm=before,
            mlp_norm=before_mlp,
            attention_out_norm=behind,
            mlp_out_norm=behind_mlp,
            head_scale=self.head_scale(attention, shape) if family.head_norms else None,
            factor=layer.layer_scalar if family.scaled else None,
        )

    def fused(self, *linears: Any) -> Affine:
        biases = [each.bias for each in linears if each.bias is not None]
        weights = [each.weight for each in linears]
        matrix = self.packing(weights)
        affine = Affine(
            concatenated(weights, self.clean) if matrix is None else matrix,
            concatenated(biases, self.clean) if biases else None,
        )
        for parameter in (*weights, *biases):
            self.watch(parameter)
        return affine

    def packing(self, weights: Sequence[nn.Parameter]) -> Tensor | None:
        """Their rows packed, in the place of their pages; nothing where these would stay."""
        pages = [pages_of(each.data) for each in weights]
        if not all(map(packable, weights)) or not all(within(each, self.clean) for each in pages):
            forget(weights)
            return None
        kept = packed(weights)
        matrix = pack(weights) if kept is None else kept
        self.packed += pages
        for each in pages:  # at once: all originals beside all copies would be the model twice
            drop(each)
        return matrix

    def release(self) -> None:
        """Give back pages that somebody read beside us: HF's own forward."""
        if not written(self.packed):
            for each in self.packed:
                drop(each)

    def norm_weight(self, norm: Any) -> Tensor:
        self.watch(norm.weight)
        family = self.description.family
        if family.late or family.centred or family.head_norms:
            self.copied.append(norm.weight)
        weight = norm.weight.data.float() if family.late else norm.weight.data
        return weight + 1.0 if family.centred else weight

    def head_scale(self, attention: Any, shape: LayerShape) -> Tensor:
        queries, keys = self.norm_weight(attention.q_norm), self.norm_weight(attention.k_norm)
        return torch.cat([queries.expand(shape.heads, -1), keys.expand(shape.kv_heads, -1)])


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Their values in one tensor [any]."""
    return torch.cat([each.data.flatten() for each in tensors]) if tensors else torch.empty(0)


def concatenated(parameters: Sequence[nn.Parameter], clean: list[Range]) -> Tensor:
    """Their rows in one tensor, which they are views of from here on; nothing is done twice. clean: what may go."""
    first = parameters[0].data
    if len(parameters) == 1:
        return first
    rows = sum(len(each) for each in parameters)
    if not adjacent(parameters):
        whole = torch.cat([each.data for each in parameters])
        for parameter, part in zip(parameters, whole.split([len(each) for each in parameters]), strict=True):
            give_back(parameter.data, clean)
            parameter.data = part
        return whole
    return first.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())


def adjacent(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether they follow each other in one storage."""
    storage, expected = parameters[0].data.untyped_storage().data_ptr(), parameters[0].data_ptr()
    for each in parameters:
        here = each.data.untyped_storage().data_ptr() == storage and each.data_ptr() == expected
        if not here or not each.data.is_contiguous():
            return False
        expected += each.data.numel() * each.data.element_size()
    return True
