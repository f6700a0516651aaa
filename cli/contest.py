"""From the options of `reanchor bench` to a run: the pair, the contestants, the prompts and the results file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import reanchor
from reanchor.benchmark.contestant import Contestant, Engine, HuggingFace
from reanchor.benchmark.conversation import Conversation
from reanchor.benchmark.environment import environment
from reanchor.benchmark.gate import Gate
from reanchor.benchmark.peers import peer
from reanchor.benchmark.run import Bench
from reanchor.config import DecodeConfig, SamplingConfig
from reanchor.datasets import SUITES, PromptSet, load_file, load_set
from reanchor.loading import Pair
from reanchor.target import Target

from .prompt import THINKING

METHODS = ("hf", "plain", "dflash", "reanchor", "ddtree")


@dataclass(frozen=True)
class Terms:
    """What a run is to measure; all of it goes into the header of its results."""

    target: str
    methods: tuple[str, ...]
    peers: tuple[str, ...]
    decode: DecodeConfig
    sampling: SamplingConfig
    temperatures: tuple[float, ...]
    raw: bool
    thinking: bool | None


def temperatures_of(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--temperature must be numbers like 0 or 0,1, got {text!r}") from error
    for value in values:
        SamplingConfig(temperature=value)
    return tuple(dict.fromkeys(values))


def prompt_sets(given: dict[str, Any]) -> list[PromptSet]:
    """What --dataset, --suite and --prompts name, in that order; the prompts that ship when nothing is named."""
    names = [*given["dataset"], *(name for suite in given["suite"] for name in SUITES[suite])]
    if not names and not given["prompts"]:
        names = ["demo"]
    limit, seed, folder = given["limit"], given["choice_seed"], given["data_dir"]
    sets = [load_set(name, folder, limit, seed) for name in dict.fromkeys(names)]
    sets += [load_file(path, limit, seed) for path in given["prompts"]]
    doubled = {each.name for each in sets if sum(other.name == each.name for other in sets) > 1}
    if doubled:
        raise ValueError(f"two sets are called {', '.join(sorted(doubled))}; rename one of the files")
    return sets


def conversation_of(pair: Pair, terms: Terms) -> Conversation:
    """Thinking is off where the template knows it, as the field measures, unless asked for."""
    template = None if terms.raw else pair.tokenizer.chat_template and pair.tokenizer.get_chat_template()
    known = THINKING.search(template) if template else None
    if terms.thinking is not None and known is None:
        raise ValueError(
            "the target's chat template knows no thinking mode; drop --thinking or --no-thinking"
        )
    return Conversation(pair.tokenizer, terms.raw, {known[1]: bool(terms.thinking)} if known else {})


def contestants_of(pair: Pair, terms: Terms) -> list[Contestant]:
    """In the order they are shown; plain decoding first, since it is the reference."""
    if not any(method in ("hf", "plain") for method in terms.methods):
        raise ValueError("nothing to compare with: --method hf or --method plain must be among the methods")
    made: list[Contestant] = []
    for method in METHODS:
        if method == "hf" and method in terms.methods:
            made.append(HuggingFace("hf", pair.target))
        elif method in terms.methods:
            config = replace(terms.decode, method=method)  # type: ignore[arg-type]
            made.append(Engine(method, pair.target, pair.drafter, config))
    return made + [peer(name, pair.target, drafter_folder(pair)) for name in terms.peers]


def drafter_folder(pair: Pair) -> Path | None:
    from reanchor.drafters.loading import DEMO_DRAFTER, locate

    if pair.drafter_name is None:
        return None
    return DEMO_DRAFTER if pair.drafter_name == "demo" else locate(pair.drafter_name)


def bench_of(pair: Pair, terms: Terms, contestants: Sequence[Contestant]) -> Bench:
    target = Target(pair.target, (), terms.decode.attention)
    return Bench(
        contestants, conversation_of(pair, terms), Gate(target), terms.sampling, target.context_length
    )


def header_of(pair: Pair, terms: Terms, sets: Sequence[PromptSet], **more: Any) -> dict[str, Any]:
    """Everything the figures depend on, in JSON's own types."""
    device = pair.target.device
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "reanchor": reanchor.__version__,
        **environment(device),
        "target": terms.target,
        "drafter": pair.drafter_name,
        "device": str(device),
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        "methods": [*terms.methods, *terms.peers],
        "decode": {name: value for name, value in asdict(terms.decode).items() if name != "method"},
        "sampling": asdict(replace(terms.sampling, temperature=0.0)),
        "temperatures": list(terms.temperatures),
        "raw": terms.raw,
        "thinking": terms.thinking,
        "prompts": {each.name: [prompt.id for prompt in each.prompts] for each in sets},
        **more,
    }


def output_path(header: dict[str, Any]) -> Path:
    """A name of its own for every kind of run, so that the same command goes on with the same file."""
    kept = {name: value for name, value in header.items() if name != "started"}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]
    sets = "+".join(header["prompts"])
    return Path(f"bench-{sets if len(sets) < 60 else 'sets'}-{header['dtype']}-{digest}.jsonl")
