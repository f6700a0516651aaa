"""What a decoding round costs and where it goes: the target's pass by transformers and by the fused forward, the draft,
and whole rounds, against what this machine can do at best.

roofline   measured copy bandwidth and matmul rate; a floor is the larger of bytes / bandwidth and work / rate,
           weights and committed keys and values read once
passes     one tree of each width by either forward: operator calls (kernels on CUDA), milliseconds, times the floor
drafts     one batched draft of each number of blocks, and the floor of its slots
rounds     plain, DFlash and ReAnchor by either forward, and HF generate: milliseconds a round and a token behind the
           first round, which projects the prompt, and the share of a round outside the target's pass and the
           drafter; and by whole rounds of fixed shapes (--graphs), which are captured on CUDA and run as they are
           here, padding included; their host share on CUDA is the time in which no kernel runs

The two stacks take turns, so that a drifting machine drifts for both; ratios are medians over such pairs. Outputs
are compared before anything is timed. With `--shape qwen3-4b` or `qwen3-8b` the weights are random and every round,
whole ones too, accepts `--accepted` drafts of its baseline block; their answers mean nothing, their times do.
`--minutes` bounds the repetitions.

    python benchmarks/round.py                          the embedded pair on this CPU
    python benchmarks/round.py --shape qwen3-4b --device cuda --dtype bfloat16 --context 1024 \\
        --widths 1,16,32,64,128,256 --blocks 1,4,8,16 --json round.json
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.autograd import DeviceType
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3Config

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.benchmark.environment import environment
from reanchor.core import Retained, Round, Tree
from reanchor.drafters.block import BlockDrafter
from reanchor.drafters.drafter_config import DrafterConfig, LayerRule
from reanchor.fused.fused_target import FusedTarget
from reanchor.graphs import graphed_rounds as graph_rounds
from reanchor.graphs.device_selector import DeviceSelector
from reanchor.graphs.round_graphs import VerifyGraph
from reanchor.graphs.round_state import RoundState
from reanchor.linear import linear
from reanchor.loading import load_pair
from reanchor.proposal import TreeBuilder
from reanchor.sampling import TokenSelector
from reanchor.target import Target

STACKS = ("transformers", "fused")
WHOLE = "whole"
METHODS = ("plain", "dflash", "reanchor")
QWEN3 = {"vocab_size": 151936, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
SHAPES: dict[str, Callable[[], Any]] = {
    "tiny": lambda: LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4
    ),
    "qwen3-4b": lambda: Qwen3Config(
        **QWEN3, hidden_size=2560, intermediate_size=9728, head_dim=128, tie_word_embeddings=True
    ),
    "qwen3-8b": lambda: Qwen3Config(**QWEN3, hidden_size=4096, intermediate_size=12288, head_dim=128),
}
BLOCK = 16
PROMPT = "Explain step by step how a bicycle stays upright, and write a small program that simulates it."


@dataclass(frozen=True)
class Bench:
    """What is measured, and how often."""

    model: PreTrainedModel
    drafter: BlockDrafter
    prompt: Tensor  # [P]
    clock: Callable[[], float]  # seconds
    repeats: int
    accepted: int | None  # drafts every round accepts; None: what the target accepts
    until: float = float("inf")  # on time.perf_counter; no repetition but a first one starts behind it

    def repetitions(self) -> Iterator[int]:
        for repeat in range(self.repeats):
            if repeat and time.perf_counter() > self.until:
                return
            yield repeat


@dataclass
class Figures:
    setting: dict[str, Any]
    roofline: dict[str, float] = field(default_factory=dict)
    passes: list[dict[str, Any]] = field(default_factory=list)
    drafts: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)


def clock_for(device: torch.device, kind: str) -> Callable[[], float]:
    """CPU time is free of a busy machine's other work; it is a duration only with one thread."""
    if kind == "cpu":
        return time.process_time
    if device.type != "cuda":
        return time.perf_counter

    def synchronized() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronized


def milliseconds(bench: Bench, call: Callable[[], object]) -> float:
    start = bench.clock()
    call()
    return (bench.clock() - start) * 1e3


def taking_turns(bench: Bench, calls: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Milliseconds of every call, `repeats` times where there is time, in turns; each is run once before."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in bench.repetitions():
        for name, call in calls.items():
            times[name].append(milliseconds(bench, call))
    return times


def paired(first: list[float], second: list[float]) -> dict[str, float]:
    """The ratio of two series taken in turns, and its quartiles."""
    ratios = [one / other for one, other in zip(first, second, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return {"ratio": middle, "low": low, "high": high}


def roofline(bench: Bench) -> dict[str, float]:
    """Bytes a second of a copy, both ways counted, and operations a second of a square product."""
    model = bench.model
    side = 4096 if model.device.type == "cuda" else 1024
    source = torch.ones(64 << 20, dtype=torch.float32, device=model.device)
    into = torch.empty_like(source)
    square = torch.ones(side, side, dtype=model.dtype, device=model.device)
    calls = {
        "copy": lambda: into.copy_(source),
        "matmul": lambda: square @ square,
        "linear": lambda: linear(square, square),  # another library's, in places a faster one
    }
    best = {name: min(times) / 1e3 for name, times in taking_turns(bench, calls).items()}
    return {
        "bytes_per_second": 2 * source.nbytes / best["copy"],
        "operations_per_second": 2.0 * side**3 / min(best["matmul"], best["linear"]),
    }


def floor(limits: dict[str, float], parts: Iterable[tuple[Tensor, float]], kept: int) -> float:
    """Milliseconds below which nothing can be that reads every weight and `kept` bytes once and makes every product.

    parts: weights, and how many rows each is multiplied by
    """
    once = {weight.data_ptr(): (weight, rows) for weight, rows in parts}.values()
    read = (kept + sum(weight.nbytes for weight, _ in once)) / limits["bytes_per_second"]
    made = sum(2 * rows * weight.numel() for weight, rows in once) / limits["operations_per_second"]
    return max(read, made) * 1e3


def pass_floor(bench: Bench, limits: dict[str, float], nodes: float) -> float:
    embedding, config = bench.model.get_input_embeddings().weight, bench.model.config
    parts = [(each, nodes) for each in bench.model.parameters() if each is not embedding]
    head = bench.model.get_output_embeddings().weight
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    row = 2 * config.num_hidden_layers * config.num_key_value_heads * size * head.element_size()
    return floor(limits, [*parts, (head, nodes)], len(bench.prompt) * row)


def draft_floor(bench: Bench, limits: dict[str, float], blocks: float) -> float:
    """Of the slots alone: rows that are projected beside them are few."""
    drafter, config = bench.drafter, bench.drafter.config
    apart = {id(each) for each in drafter.body.fc.parameters()}
    if config.own_embedding:
        apart.add(id(drafter.embed_tokens.weight))
    slots = blocks * config.block_size
    parts = [(each, slots) for each in drafter.parameters() if id(each) not in apart]
    head = drafter.borrowed[1].weight
    row = 2 * config.layers * config.kv_heads * config.head_dim * drafter.body.norm.weight.element_size()
    return floor(limits, [*parts, (head, blocks * config.proposals)], len(bench.prompt) * row)


class Counter(TorchDispatchMode):
    """Counts operators that do something; views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += not function.is_view
        return function(*args, **(kwargs or {}))


def on_device(events: Iterable[Any]) -> list[Any]:
    """A profile's events that ran there: kernels and copies, not the calls that launched them."""
    return [event for event in events if event.device_type == DeviceType.CUDA]


def busy_ms(events: Iterable[Any]) -> float:
    """Milliseconds in which at least one of them ran."""
    total, end = 0.0, float("-inf")
    for span in sorted((each.time_range.start, each.time_range.end) for each in on_device(events)):
        total += max(0.0, span[1] - max(span[0], end))
        end = max(end, span[1])
    return total / 1e3


def profiled(call: Callable[[], object]) -> Any:
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        call()
        torch.cuda.synchronize()
    return profile


def operators(bench: Bench, call: Callable[[], object]) -> int:
    """Kernels and copies on CUDA, operators called elsewhere."""
    if bench.model.device.type == "cuda":
        return len(on_device(profiled(call).events()))
    with Counter() as counter:
        call()
    return counter.calls


def widest_tree(bench: Bench, width: int) -> Tree:
    """Random paths of up to eight tokens under one anchor."""
    generator = torch.Generator().manual_seed(width)
    tokens = torch.randint(bench.model.config.vocab_size, (width,), generator=generator).tolist()
    made = TreeBuilder(int(bench.prompt[-1]), max_nodes=width)
    for start in range(0, width, 8):
        made.insert([made.tokens[0], *tokens[start : start + 8]], 0)
    return made.freeze()


def passes(bench: Bench, limits: dict[str, float], widths: list[int]) -> Iterator[dict[str, Any]]:
    taps = bench.drafter.tap_layers
    targets = {"transformers": Target(bench.model, taps), "fused": FusedTarget(bench.model, taps)}
    caches = {name: target.new_cache() for name, target in targets.items()}
    for name, target in targets.items():
        target.prefill(bench.prompt, caches[name])
    for width in widths:
        tree = widest_tree(bench, width)
        calls = {name: lambda name=name: targets[name].verify(tree, caches[name]) for name in targets}  # noqa: B023
        logits = {name: call().logits.float() for name, call in calls.items()}
        apart = float(
            (logits["transformers"] - logits["fused"]).abs().max() / logits["transformers"].abs().max()
        )
        times, least = taking_turns(bench, calls), pass_floor(bench, limits, width)
        yield {
            "nodes": width,
            "floor_ms": least,
            "largest_difference": apart,
            "repeats": len(times["transformers"]),
            **paired(times["transformers"], times["fused"]),
            "stacks": {
                name: {
                    "ms": statistics.median(times[name]),
                    "times_floor": statistics.median(times[name]) / least,
                    "operators": operators(bench, calls[name]),
                }
                for name in targets
            },
        }


def drafts(bench: Bench, limits: dict[str, float], counts: list[int]) -> Iterator[dict[str, Any]]:
    drafter, width = bench.drafter, bench.drafter.body.fc.in_features
    context = drafter.new_cache()
    like = {"dtype": bench.model.dtype, "device": bench.model.device}
    drafter.commit(torch.randn(len(bench.prompt), width, **like), context)
    for blocks in counts:
        shifts = range(1, blocks)
        retained = Retained((1,) * len(shifts), torch.randn(len(shifts), width, **like) if shifts else None)
        call = lambda: drafter.draft(1, retained, shifts, context)  # noqa: B023, E731
        times = taking_turns(bench, {"draft": call})["draft"]
        least, middle = draft_floor(bench, limits, blocks), statistics.median(times)
        yield {
            "blocks": blocks,
            "ms": middle,
            "floor_ms": least,
            "times_floor": middle / least,
            "operators": operators(bench, call),
        }


class Given(TokenSelector):
    """Accepts a given number of the baseline's drafts and pays for the argmax all the same."""

    tree: Tree | None = None
    drafts = 0

    def select_all(self, logits: Tensor, depths: Sequence[int]) -> list[int]:
        tokens = logits.argmax(-1).tolist()
        path = self.tree.paths[0][: self.drafts + 1] if self.tree is not None and self.tree.paths else []
        for node, child in zip(path, path[1:], strict=False):
            assert self.tree is not None
            tokens[node] = self.tree.tokens[child]
        return tokens


class GivenDraws:
    """The same for whole rounds, on the device."""

    generator = None

    def __init__(self, draws: DeviceSelector, state: RoundState, drafts: int) -> None:
        self.draws, self.state, self.drafts = draws, state, drafts

    def pick(self, logits: Tensor) -> Tensor:
        tokens, tree, nodes = self.draws.pick(logits), self.state.tree, len(logits)
        path = tree.paths[0, : self.drafts + 1]
        there = (path[1:] >= 0) & (path[1:] < nodes)
        place = torch.where(there, path[:-1], nodes)  # what has no place goes to a place too many
        drafted = tree.tokens[path[1:].clamp(min=0)]
        return torch.cat([tokens, tokens[:1]]).scatter(0, place, drafted)[:-1]


def given_round(drafts: int) -> type[VerifyGraph]:
    class GivenRound(VerifyGraph):
        def __init__(self, state: RoundState, *rest: Any) -> None:
            super().__init__(state, *rest)
            self.draws: Any = GivenDraws(self.draws, state, drafts)

    return GivenRound


class Player:
    """A method by a forward: decodes and keeps the time spent inside the target's pass and the drafter."""

    def __init__(self, bench: Bench, method: Any, forward: Any) -> None:
        self.bench, self.inside = bench, 0.0
        whole = forward == WHOLE
        config = DecodeConfig(method=method, forward="fused" if whole else forward, graphs=whole)
        self.decoder = SpeculativeDecoder(bench.model, bench.drafter, config)
        drafts = None if bench.accepted is None else bench.accepted if method != "plain" else 0
        self.given = None if whole else drafts
        self.selector: Given | None = None
        self.region = given_round(drafts) if whole and drafts is not None else VerifyGraph

    @contextmanager
    def rounds(self, new: int) -> Iterator[Iterator[Round]]:
        """The steps of one decode behind its first round, which projects the prompt on any stack."""
        prompt = self.bench.prompt
        if self.given is not None:
            self.selector = Given(prompt, new)
            self.selector.drafts = self.given
        with self.watched():
            steps = self.decoder.decode(prompt, SamplingConfig(max_new_tokens=new), selector=self.selector)
            if next(steps).stopped or next(steps).stopped:
                raise click.UsageError(f"--new {new} is over within a round: give more")
            yield steps

    def decode(self, new: int) -> dict[str, float]:
        with self.rounds(new) as rounds:
            self.inside, start = 0.0, self.bench.clock()
            steps = list(rounds)
            seconds = self.bench.clock() - start
        tokens = sum(len(step.tokens) for step in steps)
        return {
            "ms_per_round": seconds / len(steps) * 1e3,
            "ms_per_token": seconds / tokens * 1e3,
            "tau": tokens / len(steps),
            "nodes": statistics.mean(len(step.tree.tokens) for step in steps),
            "blocks": statistics.mean(step.drafted for step in steps),
            "outside": 1 - self.inside / seconds,
        }

    def device_ms(self, new: int) -> float:
        """Milliseconds a round in which the device is busy."""
        with self.rounds(new) as rounds:
            steps: list[Round] = []
            profile = profiled(lambda: steps.extend(rounds))
        return busy_ms(profile.events()) / len(steps)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep the time of the target's and the drafter's verbs while the context lasts."""
        target, drafter = self.decoder.target, self.decoder.drafter
        owners = [(target, "verify"), (drafter, "draft"), (drafter, "commit")]
        before = [vars(owner).get(name) for owner, name in owners]
        graph_rounds.VerifyGraph = self.region  # type: ignore[misc]
        for owner, name in owners:
            setattr(owner, name, self.timed(getattr(owner, name)))
        try:
            yield
        finally:
            graph_rounds.VerifyGraph = VerifyGraph  # type: ignore[misc]
            for (owner, name), old in zip(owners, before, strict=True):
                delattr(owner, name) if old is None else setattr(owner, name, old)

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.selector is not None and isinstance(args[0], Tree):
                self.selector.tree = args[0]
            start = self.bench.clock()
            result = function(*args, **kwargs)
            self.inside += self.bench.clock() - start
            return result

        return call


def generate_ms(bench: Bench, new: int) -> float:
    """Milliseconds a token of HF's own generate behind its first token."""

    def run(tokens: int) -> float:
        mask = torch.ones_like(bench.prompt)[None]
        arguments = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        return milliseconds(
            bench, lambda: bench.model.generate(bench.prompt[None], attention_mask=mask, **arguments)
        )

    return (run(new) - run(1)) / (new - 1)


def rounds(bench: Bench, limits: dict[str, float], new: int) -> Iterator[dict[str, Any]]:
    players = {
        (method, forward): Player(bench, method, forward)
        for method in METHODS
        for forward in (*STACKS, WHOLE)
    }
    taken: dict[Any, list[dict[str, float]]] = {key: [] for key in players}
    generate: list[float] = []
    for player in players.values():
        player.decode(new)
    generate_ms(bench, new)
    for _ in bench.repetitions():
        for key, player in players.items():
            taken[key].append(player.decode(new))
        generate.append(generate_ms(bench, new))
    yield {"method": "HF generate", "ms_per_token": statistics.median(generate), "repeats": len(generate)}
    for method in METHODS:
        hf, fused = ([each["ms_per_round"] for each in taken[method, forward]] for forward in STACKS)
        per_token = [each["ms_per_token"] for each in taken[method, "fused"]]
        row: dict[str, Any] = {"method": method, **paired(hf, fused)}
        row["lean_over_generate"] = paired(generate, per_token)
        for forward in (*STACKS, WHOLE):
            figures = taken[method, forward]
            row[forward] = {name: statistics.median(each[name] for each in figures) for name in figures[0]}
        work, whole = row[WHOLE], players[method, WHOLE]
        del work["outside"]  # a whole round has no parts; on CUDA the kernels tell
        row["floor_ms"] = round_floor(bench, limits, row["fused"])
        work["times_floor"] = work["ms_per_round"] / round_floor(bench, limits, work)
        if bench.model.device.type == "cuda":
            work["host_share"] = 1 - whole.device_ms(new) / work["ms_per_round"]
        row["regions"] = whole.decoder.forward_report()["graphs"]
        yield row


def round_floor(bench: Bench, limits: dict[str, float], figures: dict[str, float]) -> float:
    """Of a round of so many blocks and nodes; of their means where rounds differ, which is no more."""
    drafted = draft_floor(bench, limits, figures["blocks"]) if figures["blocks"] else 0.0
    return drafted + pass_floor(bench, limits, figures["nodes"])


def random_pair(shape: str, dtype: torch.dtype, device: torch.device) -> tuple[PreTrainedModel, BlockDrafter]:
    """A target of a published shape and a drafter of five of its layers, random."""
    torch.manual_seed(0)
    config = SHAPES[shape]()
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    taps = tuple(round(1 + at * (config.num_hidden_layers - 4) / 4) for at in range(5))
    heads = {"heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads}
    described = DrafterConfig(
        dialect="z-lab",
        family="dflash",
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        **heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        eps=config.rms_norm_eps,
        bias=False,
        activation="silu",
        vocab_size=config.vocab_size,
        block_size=BLOCK,
        mask_token_id=config.vocab_size - 1,
        tap_layers=taps,
        target_layers=config.num_hidden_layers,
        target_hidden_size=config.hidden_size,
        rules=(LayerRule(),) * 5,
        rope={"rope_type": "default", "rope_theta": 1e6},
        max_positions=config.max_position_embeddings,
    )
    with device:
        drafter = BlockDrafter(described).to(dtype)
    return model, drafter.borrow(model.get_input_embeddings(), model.get_output_embeddings()).eval()


def prepare(shape: str, device: str, dtype: str | None, context: int, **terms: Any) -> Bench:
    if shape == "demo":
        pair = load_pair("demo", "demo", dtype=dtype, device=device)
        chat = [{"role": "user", "content": PROMPT}]
        ids = pair.tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        model, drafter = pair.target, pair.drafter
        assert isinstance(drafter, BlockDrafter)
        ids = [*ids[:1], *(ids[1:-8] * (1 + context // len(ids)))[: max(0, context - 9)], *ids[-8:]]
    else:
        precision = getattr(torch, dtype or "bfloat16")
        model, drafter = random_pair(shape, precision, torch.device(device))
        ids = torch.randint(model.config.vocab_size - 1, (context,)).tolist()
    return Bench(model, drafter.requires_grad_(False), torch.tensor(ids, device=model.device), **terms)


def show(figures: Figures) -> None:
    console = Console(width=140)
    console.print(", ".join(f"{name} {value}" for name, value in figures.setting.items()))
    rate = figures.roofline
    console.print(
        f"copy {rate['bytes_per_second'] / 1e9:.1f} GB/s, matmul {rate['operations_per_second'] / 1e9:.0f} Gop/s"
    )
    table = Table(
        "nodes", "floor ms", "hf ms", "fused ms", "hf/fused", "× floor", "calls hf", "calls fused", "apart"
    )
    for row in figures.passes:
        hf, fused = row["stacks"]["transformers"], row["stacks"]["fused"]
        times = f"{row['floor_ms']:.2f}", f"{hf['ms']:.2f}", f"{fused['ms']:.2f}", spread(row)
        calls = str(hf["operators"]), str(fused["operators"])
        table.add_row(
            str(row["nodes"]),
            *times,
            f"{fused['times_floor']:.2f}",
            *calls,
            f"{row['largest_difference']:.1e}",
        )
    console.print(table)
    table = Table("blocks", "floor ms", "draft ms", "× floor", "calls")
    for row in figures.drafts:
        times = f"{row['floor_ms']:.2f}", f"{row['ms']:.2f}", f"{row['times_floor']:.2f}"
        table.add_row(str(row["blocks"]), *times, str(row["operators"]))
    console.print(table)
    show_rounds(console, figures.rounds)


def show_rounds(console: Console, rows: list[dict[str, Any]]) -> None:
    columns = ["method", "floor ms", "τ", "hf ms/round", "fused ms/round", "hf/fused", "fused ms/token"]
    stacks = Table(*columns, "generate/fused", "outside")
    whole = Table("whole rounds", "τ", "ms/round", "× floor", "ms/token", "host share")
    generate, *methods = rows
    stacks.add_row("HF generate", "", "", "", "", "", f"{generate['ms_per_token']:.2f}")
    for row in methods:
        hf, fused, work = row["transformers"], row["fused"], row[WHOLE]
        stacks.add_row(
            row["method"],
            f"{row['floor_ms']:.2f}",
            f"{fused['tau']:.2f}",
            f"{hf['ms_per_round']:.2f}",
            f"{fused['ms_per_round']:.2f}",
            spread(row),
            f"{fused['ms_per_token']:.2f}",
            spread(row["lean_over_generate"]),
            f"{fused['outside']:.1%}",
        )
        figures = (f"{work[name]:.2f}" for name in ("tau", "ms_per_round", "times_floor", "ms_per_token"))
        share = f"{work['host_share']:.1%}" if "host_share" in work else "no CUDA"
        whole.add_row(row["method"], *figures, share)
    console.print(stacks)
    console.print(whole)


def spread(row: dict[str, float]) -> str:
    return f"{row['ratio']:.2f} ({row['low']:.2f}–{row['high']:.2f})"


def numbers(_context: Any, _parameter: Any, value: str) -> list[int]:
    return [int(each) for each in value.split(",")]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--shape", type=click.Choice(["demo", *SHAPES]), default="demo", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype")
@click.option("--context", default=256, show_default=True, help="Prompt tokens.")
@click.option("--widths", default="1,16,32,64", callback=numbers, show_default=True)
@click.option("--blocks", default="1,4,8", callback=numbers, show_default=True)
@click.option(
    "--new", default=61, show_default=True, help="Tokens a decode adds; 1 + 6 n ends with a full round of 6."
)
@click.option("--repeats", default=5, show_default=True)
@click.option("--minutes", default=5.0, show_default=True, help="No further repetition starts after them.")
@click.option("--accepted", type=int, help="Drafts accepted a round; for random weights 5.")
@click.option("--threads", type=int, help="Of torch on a CPU.")
@click.option("--clock", type=click.Choice(["wall", "cpu"]), default="wall", show_default=True)
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here."
)
@torch.no_grad()
def main(
    shape: str,
    device: str,
    dtype: str | None,
    context: int,
    widths: list[int],
    blocks: list[int],
    new: int,
    repeats: int,
    minutes: float,
    accepted: int | None,
    threads: int | None,
    clock: str,
    file: Path | None,
) -> None:
    if threads:
        torch.set_num_threads(threads)
    if clock == "cpu" and (device != "cpu" or torch.get_num_threads() > 1):
        raise click.UsageError("--clock cpu measures one thread on a CPU: add --threads 1")
    if shape != "demo" and accepted is None:
        accepted = 5
    terms = {"clock": clock_for(torch.device(device), clock), "repeats": repeats, "accepted": accepted}
    bench = prepare(shape, device, dtype, context, until=time.perf_counter() + 60 * minutes, **terms)
    setting = {"shape": shape, "device": device, "dtype": str(bench.model.dtype), "clock": clock}
    setting |= {
        "prompt": len(bench.prompt),
        "new": new,
        "repeats": repeats,
        "minutes": minutes,
        "accepted": accepted,
    }
    figures = Figures({**setting, **environment(bench.model.device)})
    start = time.perf_counter()
    FusedTarget(bench.model)
    figures.setting["lean_start_seconds"] = round(time.perf_counter() - start, 3)
    figures.roofline = roofline(bench)
    figures.passes = list(passes(bench, figures.roofline, widths))
    figures.drafts = list(drafts(bench, figures.roofline, blocks))
    figures.rounds = list(rounds(bench, figures.roofline, new))
    show(figures)
    if file is not None:
        file.write_text(json.dumps(asdict(figures), indent=1))


if __name__ == "__main__":
    main()
