"""Experiment that the options of `reanchor bench` describe: the pair, the methods, the prompts and the results file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import reanchor
from reanchor.benchmark import ablations, fingerprint, pass_latency, sweep
from reanchor.benchmark.aggregation import PLAIN
from reanchor.benchmark.conversation import Conversation
from reanchor.benchmark.environment import environment
from reanchor.benchmark.gate import Gate
from reanchor.benchmark.harness import Bench
from reanchor.benchmark.pass_latency import PassLatency
from reanchor.benchmark.peers import peer
from reanchor.benchmark.runners import EngineRunner, HuggingFaceRunner, MethodRunner
from reanchor.benchmark.sweep import Sweep
from reanchor.chat import thinking_option, thinking_switch
from reanchor.config import OWN_RULES, DecodeConfig, ReAnchorRules, SamplingConfig
from reanchor.datasets import SUITES, PromptSet, load_file, load_set
from reanchor.decoder import SpeculativeDecoder
from reanchor.loading import Pair

# what a method of the bench is in the engine's words; hf is no engine
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain", "carryover": False},
    "dflash": {"method": "dflash", "carryover": False},
    "reanchor": {"method": "reanchor", "carryover": False},
    "ddtree": {"method": "ddtree", "carryover": False},
    "auto": {
        "method": "auto",
        "carryover": False,
        **{rule: getattr(ReAnchorRules, rule) for rule in OWN_RULES},
    },
    "carryover": {"method": "dflash", "carryover": True},
    "carryover-reanchor": {"method": "reanchor", "carryover": True},
}


@dataclass(frozen=True)
class RunSpec:
    """What a run is to measure; all of it goes into the header of its results."""

    target: str
    methods: tuple[str, ...]
    peers: tuple[str, ...]
    decode: DecodeConfig
    sampling: SamplingConfig
    temperatures: tuple[float, ...]
    raw: bool
    thinking: bool | None
    confidence_threshold: float
    limit: int | None  # prompts of every set
    choice_seed: int

    def bench(self, pair: Pair, conversation: Conversation, methods: Sequence[MethodRunner]) -> Bench:
        target = SpeculativeDecoder(pair.target, None, self.decode.having(method="plain")).target
        return Bench(methods, conversation, Gate(target), self.sampling, target.context_length)


@dataclass(frozen=True)
class Experiment:
    """What is measured in place of the methods: an ablation of the paper's, or knobs over values."""

    ablation: str | None
    sweeps: tuple[Sweep, ...]
    texts: tuple[str, ...]

    def header(self) -> dict[str, Any]:
        named = {"ablation": self.ablation} if self.ablation else {}
        return {**named, "sweep": list(self.texts)} if self.texts else named

    def costs(self, pair: Pair, terms: RunSpec, prompt: list[int]) -> PassLatency:
        """What passes of this machine cost, at the sizes that the sweeps ask for."""
        decoder = SpeculativeDecoder(pair.target, pair.drafter, terms.decode)
        asked = [value for each in self.sweeps if each.knob == "max_nodes" for value in each.values if value]
        return pass_latency.measure_latency(decoder, prompt, sorted({*pass_latency.WIDTHS, *asked}))


def experiment(given: dict[str, Any]) -> Experiment:
    texts = tuple(dict.fromkeys(given["sweeps"]))
    if given["ablation"] and texts:
        raise ValueError("--ablation and --sweep are runs of their own; give one of them")
    if given["ablation"] and (given["methods"] or given["peers"]):
        raise ValueError("ablations choose their methods; drop --method and --peer")
    return Experiment(given["ablation"], tuple(sweep.parse(text, given["methods"]) for text in texts), texts)


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
    if folder is not None and not names:
        raise ValueError(
            "--data-dir is where sets named by --dataset or --suite lie; name one, or leave it out"
        )
    sets = [load_set(name, folder, limit, seed) for name in dict.fromkeys(names)]
    sets += [load_file(path, limit, seed) for path in given["prompts"]]
    doubled = {each.name for each in sets if sum(other.name == each.name for other in sets) > 1}
    if doubled:
        raise ValueError(f"two sets are called {', '.join(sorted(doubled))}; rename one of the files")
    return sets


def conversation_of(pair: Pair, terms: RunSpec) -> Conversation:
    """Thinking is off where the template knows it, as the field measures, unless asked for."""
    if terms.raw:
        return Conversation(pair.tokenizer, raw=True)
    known = thinking_switch(pair.tokenizer) is not None
    thinking = False if terms.thinking is None and known else terms.thinking
    return Conversation(pair.tokenizer, variables=thinking_option(pair.tokenizer, thinking))


def methods_of(pair: Pair, terms: RunSpec, study: Experiment) -> list[MethodRunner]:
    """In the order they are shown; plain decoding first, since it is the reference."""
    if (study.ablation or study.sweeps) and pair.drafter is None:
        raise ValueError("ablations and sweeps need a drafter; give --drafter")
    if study.ablation and pair.drafter:
        return ablations.ablation_methods(
            ablations.ABLATIONS[study.ablation], pair.target, pair.drafter, terms.decode
        )
    methods = terms.methods or default_methods(pair.drafter)
    if not any(method in PLAIN for method in methods):
        raise ValueError("nothing to compare with: --method hf or --method plain must be among the methods")
    ruled = [*terms.decode.rules.changed(), *(each.knob for each in study.sweeps if each.knob in OWN_RULES)]
    if ruled and not any(SETTINGS.get(method, {}).get("method") == "reanchor" for method in methods):
        raise ValueError(
            f"{ruled[0]} is a rule of method 'reanchor', which is not among {', '.join(methods)}: add --method "
            "reanchor, or leave it out"
        )
    if study.sweeps and pair.drafter:
        made = sweep.sweep_methods(
            study.sweeps, pair.target, pair.drafter, terms.decode, SETTINGS, terms.methods or sweep.ONCE
        )
    else:
        made = [method_runner(method, pair, terms.decode) for method in methods]
    return made + [peer(name, pair.target, drafter_folder(pair)) for name in terms.peers]


def method_runner(method: str, pair: Pair, decode: DecodeConfig) -> MethodRunner:
    if method == "hf":
        return HuggingFaceRunner("hf", pair.target)
    return EngineRunner(method, pair.target, pair.drafter, decode.having(**SETTINGS[method]))


def engines_of(methods: Sequence[MethodRunner]) -> dict[str, Any]:
    """Whose forward pass each of ours begins with, and why: `forward: auto` alone does not say."""
    return {each.name: each.decoder.forward_report() for each in methods if isinstance(each, EngineRunner)}


def default_methods(drafter: Any) -> tuple[str, ...]:
    """The methods of a run that names none: all that the drafter allows."""
    if drafter is None:
        return (*PLAIN, "auto")
    learned = ("carryover", "carryover-reanchor") if drafter.carryover else ()
    return (*PLAIN, "dflash", "reanchor", "ddtree", "auto", *learned)


def drafter_folder(pair: Pair) -> Path | None:
    from reanchor.drafters.load import locate

    return None if pair.drafter_name is None else locate(pair.drafter_name)


def header_of(pair: Pair, terms: RunSpec, sets: Sequence[PromptSet], **more: Any) -> dict[str, Any]:
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
        "decode": {name: value for name, value in asdict(terms.decode).items() if name != "method"},
        "sampling": asdict(replace(terms.sampling, temperature=0.0)),
        "temperatures": list(terms.temperatures),
        "raw": terms.raw,
        "thinking": terms.thinking,
        "confidence_threshold": terms.confidence_threshold,
        "limit": terms.limit,
        "choice_seed": terms.choice_seed,
        "sources": {each.name: each.source for each in sets},
        "texts": {each.name: fingerprint.of_prompts(each) for each in sets},
        "weights": weights_of(pair),
        "prompts": {each.name: [prompt.id for prompt in each.prompts] for each in sets},
        **more,
    }


def weights_of(pair: Pair) -> dict[str, str | None]:
    """What lies behind the names of target and drafter."""
    folder = drafter_folder(pair)
    return {
        "target": fingerprint.of_target(pair.target),
        "drafter": None if folder is None else fingerprint.of_checkpoint(folder),
    }


def output_path(header: dict[str, Any]) -> Path:
    """A name of its own for every kind of run, so that the same command goes on with the same file."""
    kept = {name: value for name, value in header.items() if name != "started"}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]
    sets = "+".join(header["prompts"])
    return Path(f"bench-{sets if len(sets) < 60 else 'sets'}-{header['dtype']}-{digest}.jsonl")
