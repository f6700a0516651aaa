"""The published forward passes once more, plainly, one block at a time and from scratch, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from .writer import HD, HEADS, KV, MASK, Facts, Written


def rms(rows: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    normed = rows / (rows.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return normed if weight is None else normed * weight


def rope(heads: Tensor, positions: Tensor, theta: float) -> Tensor:
    """heads: [rows, heads, hd]"""
    half = heads.shape[-1] // 2
    angles = positions.double()[:, None, None] / theta ** (torch.arange(half).double() / half)
    low, high = heads[..., :half], heads[..., half:]
    return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], -1)


def linear(rows: Tensor, tensors: dict[str, Tensor], name: str) -> Tensor:
    out = rows @ tensors[f"{name}.weight"].T
    return out + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else out


def attention(
    slots: Tensor, context: Tensor, written: Written, layer: int, queries: Tensor, keys: Tensor
) -> Tensor:
    """Slots [B, H] at positions `queries`; context [C, H] before them; `keys`: positions of both."""
    tensors, facts, at = written.tensors, written.facts, f"layers.{layer}.self_attn."
    rows = torch.cat([context, slots])
    q = rms(
        linear(slots, tensors, at + "q_proj").view(-1, HEADS, HD), tensors[at + "q_norm.weight"], facts.eps
    )
    k = rms(linear(rows, tensors, at + "k_proj").view(-1, KV, HD), tensors[at + "k_norm.weight"], facts.eps)
    v = linear(rows, tensors, at + "v_proj").view(-1, KV, HD)
    q, k = rope(q, queries, facts.theta), rope(k, keys, facts.theta)
    causal, window = facts.rules[layer]
    out = torch.zeros_like(q)
    for slot in range(len(slots)):
        away = queries[slot] - keys
        seen = torch.ones(len(keys), dtype=torch.bool)
        if causal:
            seen &= away >= 0
        if window is not None:
            seen &= away.abs() < window
        for head in range(HEADS):
            group = head // (HEADS // KV)
            scores = (k[seen, group] @ q[slot, head]) / HD**0.5
            out[slot, head] = scores.softmax(0) @ v[seen, group]
    return linear(out.flatten(1), tensors, at + "o_proj")


def block_states(written: Written, features: Tensor, embedded: Tensor) -> Tensor:
    """Final states of one block. features: [C, Dc] at positions 0..C-1; embedded: [B, H] -> [B, H]"""
    tensors, facts = written.tensors, written.facts
    context = rms(features @ tensors["fc.weight"].T, tensors["hidden_norm.weight"], facts.eps)
    keys = torch.arange(len(context) + len(embedded))
    hidden = embedded
    for layer in range(facts.layers):
        at = f"layers.{layer}."
        normed = rms(hidden, tensors[at + "input_layernorm.weight"], facts.eps)
        hidden = hidden + attention(normed, context, written, layer, keys[len(context) :], keys)
        normed = rms(hidden, tensors[at + "post_attention_layernorm.weight"], facts.eps)
        gate = torch.nn.functional.silu(linear(normed, tensors, at + "mlp.gate_proj"))
        hidden = hidden + linear(
            gate * linear(normed, tensors, at + "mlp.up_proj"), tensors, at + "mlp.down_proj"
        )
    return rms(hidden, tensors["norm.weight"], facts.eps)


def block_logits(written: Written, target: torch.nn.Module, features: Tensor, anchor: int) -> Tensor:
    """Logits of the predicting slots of one block anchored behind `features`. -> [K, V]"""
    facts: Facts = written.facts
    ids = torch.tensor([anchor] + [MASK] * (facts.block - 1))
    embedded = target.get_input_embeddings()(ids) * facts.embedding_scale
    states = block_states(written, features, embedded)[0 if facts.shifted else 1 :]
    logits = target.get_output_embeddings()(states) * facts.multiplier
    return logits if facts.softcap is None else facts.softcap * torch.tanh(logits / facts.softcap)
