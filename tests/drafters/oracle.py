"""The published forward passes once more, plainly, one block at a time and from scratch, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .writer import HEADS, MASK, Facts, Written

Tensors = dict[str, Tensor]


def rms(rows: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    normed = rows / (rows.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return normed if weight is None else normed * weight


def rope(heads: Tensor, positions: Tensor, facts: Facts) -> Tensor:
    """heads: [rows, heads, hd]"""
    half = heads.shape[-1] // 2
    plain = [facts.theta ** (-pair / half) for pair in range(half)]
    frequencies = torch.tensor(facts.frequencies or plain, dtype=torch.float64)
    angles = positions.double()[:, None, None] * frequencies
    cos, sin = angles.cos() * facts.angle_scale, angles.sin() * facts.angle_scale
    low, high = heads[..., :half], heads[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def linear(rows: Tensor, tensors: Tensors, name: str) -> Tensor:
    out = rows @ tensors[f"{name}.weight"].T
    return out + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else out


def attention(
    slots: Tensor, context: Tensor, written: Written, layer: int, queries: Tensor, keys: Tensor
) -> Tensor:
    """Slots [B, H] at positions `queries`; context [C, H] before them; `keys`: positions of both."""
    tensors, facts, at = written.tensors, written.facts, f"layers.{layer}.self_attn."
    rows, kv, hd = torch.cat([context, slots]), facts.kv, facts.hd
    q = rms(
        linear(slots, tensors, at + "q_proj").view(-1, HEADS, hd), tensors[at + "q_norm.weight"], facts.eps
    )
    unnormed = linear(rows, tensors, at + "k_proj").view(-1, kv, hd)
    k = rms(unnormed, tensors[at + "k_norm.weight"], facts.eps)
    own = None if facts.gemma else linear(rows, tensors, at + "v_proj").view(-1, kv, hd)
    v = rms(unnormed, None, facts.eps) if own is None else own
    q, k = rope(q, queries, facts), rope(k, keys, facts)
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
            group = head // (HEADS // kv)
            scores = (k[seen, group] @ q[slot, head]) / (1.0 if facts.gemma else hd**0.5)
            out[slot, head] = scores.softmax(0) @ v[seen, group]
    return linear(out.flatten(1), tensors, at + "o_proj")


def mlp(rows: Tensor, tensors: Tensors, at: str, gemma: bool) -> Tensor:
    gate = linear(rows, tensors, at + "mlp.gate_proj")
    if gemma:
        inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        gate = 0.5 * gate * (1 + torch.tanh(inner))
    else:
        gate = gate / (1 + torch.exp(-gate))
    return linear(gate * linear(rows, tensors, at + "mlp.up_proj"), tensors, at + "mlp.down_proj")


def convolve(slots: Tensor, base: Tensor, dynamic: Tensor) -> Tensor:
    """slots: [B, H]; base: [kernel, H]; dynamic: [B, kernel, groups]; one number at a time"""
    out = torch.zeros_like(slots)
    size = slots.shape[1] // dynamic.shape[2]
    for slot in range(len(slots)):
        for channel in range(slots.shape[1]):
            for back in range(min(len(base), slot + 1)):
                weight = base[back, channel] + dynamic[slot, back, channel // size]
                out[slot, channel] += weight * slots[slot - back, channel]
    return out


def around(rows: Tensor, tensors: Tensors, conv: str, sublayer: object) -> Tensor:
    """DFlash 2's convolutions before and after a sublayer, when it has them."""
    if f"{conv}.base_kernel" not in tensors:
        return sublayer(rows)  # type: ignore[operator]
    base = tensors[f"{conv}.base_kernel"]
    dynamic = linear(rows, tensors, f"{conv}.kernel_projection").view(len(rows), 2, base.shape[1], -1)
    out = sublayer(convolve(rows, base[0], dynamic[:, 0]))  # type: ignore[operator]
    return convolve(out, base[1], dynamic[:, 1])


def block_states(written: Written, features: Tensor, embedded: Tensor) -> Tensor:
    """Final states of one block. features: [C, Dc] at positions 0..C-1; embedded: [B, H] -> [B, H]"""
    tensors, facts = written.tensors, written.facts
    context = rms(features @ tensors["fc.weight"].T, tensors["hidden_norm.weight"], facts.eps)
    keys = torch.arange(len(context) + len(embedded))
    hidden = embedded
    for layer in range(facts.layers):
        at = f"layers.{layer}."

        def attend(rows: Tensor, layer: int = layer) -> Tensor:
            return attention(rows, context, written, layer, keys[len(context) :], keys)

        def feed(rows: Tensor, at: str = at) -> Tensor:
            return mlp(rows, tensors, at, facts.gemma)

        def norm(rows: Tensor, name: str, at: str = at) -> Tensor:
            return rms(rows, tensors[f"{at}{name}.weight"], facts.eps)

        out = around(norm(hidden, "input_layernorm"), tensors, at + "attention_conv", attend)
        if facts.gemma:
            hidden = hidden + norm(out, "post_attention_layernorm")
            out = norm(feed(norm(hidden, "pre_feedforward_layernorm")), "post_feedforward_layernorm")
            hidden = (hidden + out) * tensors[at + "layer_scalar"]
        else:
            hidden = hidden + out
            hidden = hidden + around(norm(hidden, "post_attention_layernorm"), tensors, at + "mlp_conv", feed)
    return rms(hidden, tensors["norm.weight"], facts.eps)


@dataclass
class Expected:
    """One block as it should be drafted."""

    tokens: list[int]  # [K]
    log_probs: list[dict[int, float]]  # [K] target id -> log-probability
    confidence: list[float] | None  # [K]


def expected_block(written: Written, target: torch.nn.Module, features: Tensor, anchor: int) -> Expected:
    """One block anchored behind `features`, its tokens chosen one after the other."""
    facts, tensors = written.facts, written.tensors

    def embed(ids: list[int]) -> Tensor:
        table = tensors.get("embed_tokens.weight", target.get_input_embeddings().weight)
        return table[torch.tensor(ids)] * facts.embedding_scale

    states = block_states(written, features, embed([anchor] + [MASK] * (facts.block - 1)))
    states = states[0 if facts.shifted else 1 :]
    logits = (
        states @ tensors.get("lm_head.weight", target.get_output_embeddings().weight).T * facts.multiplier
    )
    if facts.softcap is not None:
        logits = facts.softcap * torch.tanh(logits / facts.softcap)
    scorer = Scorer(written, embed, anchor)
    for state, row in zip(states, logits, strict=True):
        scorer.take(state, row)
    return Expected(scorer.chosen[1:], scorer.log_probs, scorer.confidence)


class Scorer:
    """Takes the slots of one block in order."""

    def __init__(self, written: Written, embed: object, anchor: int) -> None:
        self.tensors, self.facts, self.embed = written.tensors, written.facts, embed
        self.top_k = written.config.get("dflash_config", {}).get("selector_top_k")
        self.chosen = [anchor]
        self.log_probs: list[dict[int, float]] = []
        self.confidence: list[float] | None = [] if "confidence_head.proj.weight" in self.tensors else None
        self.state: Tensor | None = None

    def take(self, hidden: Tensor, logits: Tensor) -> None:
        self.believe(hidden)
        ids = torch.arange(len(logits))
        if "markov_head.markov_w1.weight" in self.tensors:
            logits = logits + self.markov(hidden)
        if "prefix_gru.weight_ih_l0" in self.tensors:
            correction = self.gru(hidden)
            logits = logits + correction if len(self.chosen) > self.facts.prefix else logits
        if self.top_k:
            ids, logits = self.select(hidden, logits)
        if "d2t" in self.tensors:
            ids = ids + self.tensors["d2t"][ids]
        self.chosen.append(int(ids[logits.argmax()]))
        spread = logits - logits.exp().sum().log()
        self.log_probs.append(dict(zip(ids.tolist(), spread.tolist(), strict=True)))

    def before(self) -> Tensor:
        return self.tensors["markov_head.markov_w1.weight"][self.chosen[-1]]

    def markov(self, hidden: Tensor) -> Tensor:
        latent, tensors = self.before(), self.tensors
        if "markov_head.gate_proj.weight" in tensors:
            gate = linear(torch.cat([hidden, latent]), tensors, "markov_head.gate_proj")
            latent = latent / (1 + torch.exp(-gate))
        if "markov_head.joint_proj.weight" in tensors:
            state = torch.zeros_like(latent) if self.state is None else self.state
            joint = linear(torch.cat([state, latent, hidden]), tensors, "markov_head.joint_proj")
            rank = len(latent)
            gate = 1 / (1 + torch.exp(-joint[:rank]))
            self.state = gate * state + (1 - gate) * torch.tanh(joint[rank : 2 * rank])
            latent = torch.tanh(joint[2 * rank :])
        return tensors["markov_head.markov_w2.weight"] @ latent

    def gru(self, hidden: Tensor) -> Tensor:
        """The state has read the anchor and every token chosen so far."""
        size = self.tensors["prefix_gru.weight_hh_l0"].shape[1]
        state = torch.zeros(size, dtype=torch.float64) if self.state is None else self.state
        read = self.tensors["prefix_gru.weight_ih_l0"] @ self.embed([self.chosen[-1]])[0]  # type: ignore[operator]
        kept = self.tensors["prefix_gru.weight_hh_l0"] @ state
        reset = torch.sigmoid(read[:size] + kept[:size])
        update = torch.sigmoid(read[size : 2 * size] + kept[size : 2 * size])
        new = torch.tanh(read[2 * size :] + reset * kept[2 * size :])
        self.state = (1 - update) * new + update * state
        inner = self.tensors["embed_proj.0.weight"] @ torch.cat([hidden, self.state])
        return self.tensors["embed_proj.2.weight"] @ (inner * torch.sigmoid(inner))

    def select(self, hidden: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        part = "candidate_selector."
        ids = logits.argsort(descending=True)[: self.top_k]
        query = self.tensors[f"{part}hidden_projection.weight"] @ hidden
        query = query * self.tensors[f"{part}predecessor_codebook"][self.chosen[-1]]
        return ids, logits[ids] + self.tensors[f"{part}successor_codebook"][ids] @ query

    def believe(self, hidden: Tensor) -> None:
        if self.confidence is None:
            return
        weight = self.tensors["confidence_head.proj.weight"][0]
        reads = torch.cat([hidden, self.before()]) if len(weight) > len(hidden) else hidden
        logit = weight @ reads + self.tensors["confidence_head.proj.bias"][0]
        temperatures = self.facts.temperatures or (1.0,) * self.facts.block
        self.confidence.append(float(torch.sigmoid(logit / temperatures[len(self.confidence)])))
