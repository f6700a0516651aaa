"""`reanchor generate`: the answer on stdout as it is committed, the figures on stderr."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from reanchor.config import DecodeConfig, SamplingConfig

from .console import be_quiet, hush, quieted, say, talk, usage_errors, waiting, write
from .options import config_from, options, pair_options
from .prompt import check_text, prompt_ids, read_prompt

if TYPE_CHECKING:
    from reanchor.loading import Pair

    from .decode_run import DecodeRun, Request


@click.command()
@click.option("--prompt", help="The prompt; without it and --prompt-file it is read from standard input.")
@click.option("--prompt-file", help="A UTF-8 file with the prompt; - is standard input.")
@click.option("--raw", is_flag=True, help="Send the prompt as it is, without the tokenizer's chat template.")
@click.option("--system", help="The system message of the chat.")
@click.option(
    "--thinking/--no-thinking", default=None, help="Thinking mode, where the chat template knows one."
)
@click.option("--stop", multiple=True, help="Stop after this text, which is kept; may be given again.")
@pair_options
@options(SamplingConfig)
@options(DecodeConfig)
@click.option(
    "--compare", is_flag=True, help="Also run plain decoding, DFlash and ReAnchor on the same prompt."
)
@click.option("--quiet", is_flag=True, is_eager=True, callback=be_quiet, expose_value=False,
              help="Only the answer: no summary, no notes.")  # fmt: skip
@click.option("--verbose", is_flag=True, help="The whole summary.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the answer.")
@click.option("--show-tree", is_flag=True, help="Draw the rounds: where each committed token came from.")
@click.option("--show-round", type=int, help="Draw the tree of this round too.")
def generate(**given: Any) -> None:
    """Answer a prompt with a target and a drafter that speeds it up without changing what it says."""
    with usage_errors():
        config, sampling = config_from(DecodeConfig, given), config_from(SamplingConfig, given)
        if "" in given["stop"]:
            raise ValueError("--stop '' would stop at once; give the text to stop after")
        for name, value in [
            ("--system", given["system"] or ""),
            *(("--stop", each) for each in given["stop"]),
        ]:
            check_text(value, name)
        text = read_prompt(given["prompt"], given["prompt_file"])
        answer(text, config, sampling, given)


def answer(text: str, config: DecodeConfig, sampling: SamplingConfig, given: dict[str, Any]) -> None:
    with waiting("Loading"):
        pair = load(config, given)
    from reanchor.decoder import resolve_method

    config = resolve_method(config, pair.drafter, pair.target.device.type)
    from .answer import AnswerStream
    from .decode_run import Request, run_method

    warn_of_thinking(pair, given)
    context = getattr(pair.target.config.get_text_config(), "max_position_embeddings", None)
    ids = prompt_ids(text, pair.tokenizer, given["raw"], given["system"], given["thinking"], context)
    request = Request(ids, sampling, given["stop"])
    if given["compare"]:
        from .compare import warm_up

        warm_up(pair, request, config)
    streamer = None if given["as_json"] else AnswerStream(pair.tokenizer, write)
    done = run_method(pair, request, config, streamer)
    report(done, pair, request, given)


def load(config: DecodeConfig, given: dict[str, Any]) -> Pair:
    from reanchor.loading import load_pair

    hush()
    alone = config.method == "plain" and not given["compare"]
    pair = load_pair(
        given["target"],
        None if alone else given["drafter"],
        dtype=given["dtype"],
        device=given["device"],
        confidence_threshold=given["confidence_threshold"],
        say=say,
    )
    if pair.tokenizer is None:
        raise ValueError(
            f"the target {given['target']!r} has no tokenizer; add its tokenizer files to the folder"
        )
    return pair


def warn_of_thinking(pair: Pair, given: dict[str, Any]) -> None:
    """Say it when the prompt is in another thinking mode than the drafter was trained in."""
    from reanchor.chat import default_thinking, thinking_switch
    from reanchor.drafters.published import thinking_mismatch

    if pair.drafter_name is None or given["raw"] or thinking_switch(pair.tokenizer) is None:
        return
    mode = default_thinking(pair.tokenizer) if given["thinking"] is None else given["thinking"]
    warning = thinking_mismatch(pair.drafter_name, bool(mode))
    if warning:
        say(f"warning: {warning}")


def report(done: DecodeRun, pair: Pair, request: Request, given: dict[str, Any]) -> None:
    from .summary import as_object, summary

    printed = as_object(
        done, pair, {"target": given["target"], "drafter": given["drafter"], **request.to_dict()}
    )
    if not quieted():
        talk(summary(done, pair, given["verbose"]))
    if given["show_tree"] or given["show_round"] is not None:
        draw(done, pair, given["show_round"])
    if given["compare"]:
        printed["compare"] = compare(done, pair, request)
    if given["as_json"]:
        write(json.dumps(printed) + "\n")


def draw(done: DecodeRun, pair: Pair, number: int | None) -> None:
    from .round_view import chosen_round, draw_tree, legend, rounds_table

    talk(rounds_table(done.rounds, pair.tokenizer))
    talk(legend())
    if number is not None:
        talk(draw_tree(chosen_round(done.rounds, number), number, pair.tokenizer))


def compare(done: DecodeRun, pair: Pair, request: Request) -> dict[str, Any]:
    from . import compare

    runs = compare.run_other_methods(pair, request, done)
    verdicts = {method: compare.verdict(pair, request, runs["plain"], each) for method, each in runs.items()}
    talk(compare.table(runs, verdicts))
    return compare.as_object(runs, verdicts)
