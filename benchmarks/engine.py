"""What the engine itself costs, on the embedded pair: overhead, the same work in the original loop, peak memory.

overhead   share of a round spent outside the target's pass and the drafter's two verbs
original   DFlash decoding in our loop against the original loop (PyPI dflash 0.1.0), pairs in turn
memory     peak resident memory of one new token after a long prompt, HF generate against ours, a process each

    python benchmarks/engine.py overhead --json
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import click
import torch

from reanchor import DecodeConfig, SamplingConfig, SpeculativeDecoder
from reanchor.drafters.load import SHIPPED
from reanchor.loading import load_pair

PROMPTS = [
    "A train leaves at noon and travels 60 miles an hour. How far is it at half past two?",
    "Write a Python function that returns the larger of two numbers.",
    "Explain in one sentence why the sky is blue.",
    "A box has 12 eggs. How many eggs are in 3 boxes?",
]


class Meter:
    """Adds up the time spent inside the functions it wraps; a call inside a call is not counted twice."""

    def __init__(self) -> None:
        self.seconds, self.depth = 0.0, 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1
                if not self.depth:
                    self.seconds += time.perf_counter() - start

        return timed


def encoded(tokenizer: Any) -> list[list[int]]:
    chats = ([{"role": "user", "content": prompt}] for prompt in PROMPTS)
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]


def report(figures: dict[str, Any], as_json: bool) -> None:
    click.echo(
        json.dumps(figures) if as_json else "\n".join(f"{name:28} {value}" for name, value in figures.items())
    )


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


@click.group()
def main() -> None:
    """Measure the engine's own cost on the embedded pair."""


@main.command()
@click.option("--tokens", default=48)
@click.option("--repeats", default=3)
@click.option("--json", "as_json", is_flag=True)
def overhead(tokens: int, repeats: int, as_json: bool) -> None:
    """Round time outside pass and drafter as a share of the round, median over prompts and repeats."""
    pair = load_pair()
    assert pair.drafter is not None
    meter = Meter()
    model, drafter = pair.target, pair.drafter
    drafter.draft = meter.wrap(drafter.draft)  # type: ignore[method-assign]
    drafter.commit = meter.wrap(drafter.commit)  # type: ignore[method-assign]
    figures: dict[str, Any] = {"tokens": tokens, "threads": torch.get_num_threads()}
    for method in ("plain", "dflash", "reanchor"):
        decoder = SpeculativeDecoder(model, drafter, DecodeConfig(method))
        target, shares = decoder.target, []
        target.verify = meter.wrap(target.verify)  # type: ignore[method-assign]
        for ids in encoded(pair.tokenizer) * repeats:
            steps = decoder.decode(ids, SamplingConfig(max_new_tokens=tokens))
            next(steps)  # the prefill is no round
            meter.seconds, start = 0.0, time.perf_counter()
            for _ in steps:
                pass
            shares.append(1 - meter.seconds / (time.perf_counter() - start))
        if decoder.target is not target:
            raise click.ClickException("the decoder took another target than the one that was timed")
        figures[method] = {
            **spread(shares[1:]),
            "forward": target.forward_report()["used"],
        }  # the first warms up
    report(figures, as_json)


@main.command()
@click.option("--tokens", default=48)
@click.option("--repeats", default=3)
@click.option("--json", "as_json", is_flag=True)
def original(tokens: int, repeats: int, as_json: bool) -> None:
    """Time of the original DFlash loop over ours, pair by pair; above 1 ours is faster."""
    import dflash.model as zlab
    from safetensors.torch import load_file
    from transformers import AutoConfig

    pair = load_pair()
    model = zlab.DFlashDraftModel(AutoConfig.from_pretrained(SHIPPED["demo"])).to(pair.target.dtype).eval()
    model.load_state_dict(load_file(SHIPPED["demo"] / "model.safetensors"))
    decoder = SpeculativeDecoder(pair.target, pair.drafter, DecodeConfig("dflash"))

    def ours(ids: list[int]) -> list[int]:
        return [t for step in decoder.decode(ids, SamplingConfig(max_new_tokens=tokens)) for t in step.tokens]

    @torch.no_grad()
    def theirs(ids: list[int]) -> list[int]:
        return zlab.dflash_generate(model, pair.target, torch.tensor([ids]), tokens, None)[
            0, len(ids) :
        ].tolist()

    ratios = []
    for turn, ids in enumerate(encoded(pair.tokenizer) * (repeats + 1)):
        seconds = {}
        outputs = []
        for run in (ours, theirs) if turn % 2 else (theirs, ours):
            start = time.perf_counter()
            outputs.append(run(ids))
            seconds[run] = time.perf_counter() - start
        if outputs[0] != outputs[1]:
            raise click.ClickException(
                f"the outputs differ on prompt {turn % len(PROMPTS)}: no ratio of different work"
            )
        ratios.append(seconds[theirs] / seconds[ours])
    report({"tokens": tokens, "pairs": len(ratios) - 1, "original / ours": spread(ratios[1:])}, as_json)


RUNS = ("load", "HF generate", "plain", "reanchor", "reanchor on hf")


@main.command()
@click.option("--prompt-tokens", default=4096)
@click.option("--tokens", default=8)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32")
@click.option("--processes", default=1, help="Of each, as the allocator's heap differs from one to the next.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--run", type=click.Choice(RUNS), hidden=True)
def memory(
    prompt_tokens: int, tokens: int, dtype: str, processes: int, as_json: bool, run: str | None
) -> None:
    """Peak resident memory in MiB of HF generate and of ours, beside what a loaded target alone takes."""
    if run is not None:
        click.echo(one_run(run, prompt_tokens, tokens, dtype))
        return
    figures: dict[str, Any] = {"prompt_tokens": prompt_tokens, "dtype": dtype}
    for name in RUNS:
        command = [sys.executable, __file__, "memory", "--run", name, "--dtype", dtype]
        command += ["--prompt-tokens", str(prompt_tokens), "--tokens", str(tokens)]
        outputs = [
            subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(processes)
        ]
        figures[name] = sorted(round(float(each.stdout)) for each in outputs)
    report(figures, as_json)


def one_run(name: str, prompt_tokens: int, tokens: int, dtype: str) -> float:
    prompt = torch.arange(prompt_tokens) % 1000 + 100
    pair = load_pair(dtype=dtype, drafter="demo" if name.startswith("reanchor") else None)
    if name == "HF generate":
        pair.target.generate(prompt[None], max_new_tokens=tokens, do_sample=False, eos_token_id=None)
    elif name != "load":
        config = DecodeConfig(
            name.split()[0], forward="transformers" if name.endswith("transformers") else "auto"
        )
        decoder = SpeculativeDecoder(pair.target, pair.drafter, config)
        list(decoder.decode(prompt, SamplingConfig(max_new_tokens=tokens)))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
