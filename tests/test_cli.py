"""The command as a user runs it: whole outputs, exit codes, input from everywhere, and the README's own words."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import click
import pytest
import torch
from click.testing import CliRunner, Result
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from reanchor import DecodeConfig, SamplingConfig
from reanchor.config import ReAnchorRules
from reanchor_cli.answer import AnswerStream
from reanchor_cli.compare import difference
from reanchor_cli.main import main
from reanchor_cli.options import config_from, options

from .checkpoints import CHARACTERS, tokenizer, write_drafter, write_target

ROOT = Path(__file__).parent.parent
Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    return write_target(root / "target"), write_drafter(root / "drafter")


@pytest.fixture
def generate(pair: tuple[Path, Path]) -> Invoke:
    """`reanchor generate` on the tiny pair, on the CPU."""
    target, drafter = map(str, pair)

    def invoke(*arguments: str, input: bytes | str | None = None) -> Result:
        places = ("--target", target, "--drafter", drafter, "--device", "cpu")
        return CliRunner().invoke(main, ["generate", *places, *arguments], input=input)

    return invoke


def ids_of(text: str) -> list[int]:
    return tokenizer()(text).input_ids


def expected(pair: tuple[Path, Path], text: str, new: int, **kwargs: Any) -> list[int]:
    """The target's own greedy answer to a rendered prompt, by transformers alone."""
    target = AutoModelForCausalLM.from_pretrained(pair[0], dtype=torch.float32)
    ids = torch.tensor([ids_of(text)])
    return target.generate(ids, max_new_tokens=new, do_sample=False, **kwargs)[0, ids.shape[1] :].tolist()


def test_the_whole_json(generate, pair):
    result = generate("--prompt", "Hi", "--max-new-tokens", "24", "--json", "--max-nodes", "20")
    assert result.exit_code == 0, result.stderr
    printed = json.loads(result.stdout)
    tokens = expected(pair, "u:Hi\na:", 24)
    stats = printed.pop("stats")
    assert printed.pop("attention")["used"] and printed.pop("forward")["used"]
    assert printed == {
        "reanchor": __import__("reanchor").__version__,
        "target": str(pair[0]),
        "drafter": str(pair[1]),
        "prompt_ids": ids_of("u:Hi\na:"),
        "sampling_config": {knob.name: knob.default for knob in fields(SamplingConfig)}
        | {"max_new_tokens": 24},
        "stop": [],
        "device": "cpu",
        "dtype": "float32",
        "text": "".join(([""] + CHARACTERS)[token] for token in tokens),
        "tokens": tokens,
        "finish_reason": "length",
        "decode_config": {knob.name: knob.default for knob in fields(DecodeConfig)}
        | {"method": "auto", "max_nodes": 20, "rules": asdict(ReAnchorRules())},
    }
    rounds = stats["per_round"]
    assert stats["tokens"] == 24 and stats["prompt_tokens"] == len(ids_of("u:Hi\na:"))
    assert sum(each["tokens"] for each in rounds) == 23 and stats["rounds"] == len(rounds)
    assert stats["tau"] == pytest.approx(23 / len(rounds))
    assert all(1 <= each["nodes"] <= 20 for each in rounds)
    split = stats["stage_seconds"]
    assert list(split) == ["draft", "assemble", "verify", "commit", "other"]
    assert sum(split.values()) == pytest.approx(stats["decode_seconds"]) and stats["time_to_first_token"] > 0


def test_answer_on_stdout_figures_on_stderr(generate, pair):
    result = generate("--prompt", "Hi", "--max-new-tokens", "24", "--verbose")
    text = tokenizer().decode(expected(pair, "u:Hi\na:", 24))
    assert result.exit_code == 0 and result.stdout == text + "\n"
    for row in ("acceptance length", "drafts accepted", "from shifted blocks", "rounds", "nodes verified"):
        assert row in result.stderr
    for row in ("time to first token", "tokens per second", "time split", "device", "dtype", "attention"):
        assert row in result.stderr


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        (["--system", "S"], "s:S\nu:Hi\na:"),
        (["--no-thinking"], "u:Hi\n-a:"),
        (["--thinking"], "u:Hi\na:"),
        (["--raw"], "Hi"),
    ],
)
def test_the_chat_that_is_sent(generate, pair, arguments, rendered):
    result = generate("--prompt", "Hi", "--max-new-tokens", "6", "--json", *arguments)
    assert json.loads(result.stdout)["tokens"] == expected(pair, rendered, 6)


def test_the_prompt_comes_from_anywhere(generate, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("Hi\n")
    arguments = ("--max-new-tokens", "6")
    results = [
        generate("--prompt", "Hi", *arguments),
        generate("--prompt-file", str(file), *arguments),
        generate("--prompt-file", "-", *arguments, input="Hi\n"),
        generate(*arguments, input="Hi\n"),
        generate(*arguments, input=b"\xef\xbb\xbfHi\r\n"),
    ]
    assert {result.exit_code for result in results} == {0}
    assert len({result.stdout for result in results}) == 1


def test_stop_text_ends_the_answer(generate, pair):
    whole = tokenizer().decode(expected(pair, "u:Hi\na:", 24))
    stop = whole[9:11]
    result = generate(
        "--prompt", "Hi", "--max-new-tokens", "24", "--stop", stop, "--stop", "never~", "--json"
    )
    printed = json.loads(result.stdout)
    assert printed["text"] == whole[: whole.index(stop) + 2] and printed["finish_reason"] == "stop"


def test_the_end_token_ends_the_answer(generate, pair, tmp_path):
    tokens = expected(pair, "u:Hi\na:", 24)
    config = pair[0] / "generation_config.json"
    kept = config.read_text()
    try:
        config.write_text(json.dumps({**json.loads(kept), "eos_token_id": [tokens[7]]}))
        printed = json.loads(generate("--prompt", "Hi", "--max-new-tokens", "24", "--json").stdout)
    finally:
        config.write_text(kept)
    assert printed["tokens"] == tokens[: tokens.index(tokens[7]) + 1] and printed["finish_reason"] == "end"


def test_the_context_ends_the_answer(generate):
    printed = json.loads(generate("--raw", "--prompt", "x" * 505, "--max-new-tokens", "50", "--json").stdout)
    assert printed["stats"]["tokens"] == 7 and printed["finish_reason"] == "context"


def test_sampling_is_seeded_and_is_sampling(generate):
    arguments = ("--prompt", "Hi", "--max-new-tokens", "24", "--temperature", "2", "--top-k", "50")
    first, again, other = (generate(*arguments, "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again != other
    assert first != generate(*arguments[:4]).stdout


def test_top_p_reaches_the_target(generate):
    greedy = generate("--prompt", "Hi", "--max-new-tokens", "24")
    nearly = generate("--prompt", "Hi", "--max-new-tokens", "24", "--temperature", "2", "--top-p", "1e-9")
    assert nearly.stdout == greedy.stdout


def test_methods_say_the_same(generate):
    answers = {
        generate("--prompt", "Hi", "--max-new-tokens", "24", *arguments).stdout
        for arguments in (
            ["--method", "plain"],
            ["--method", "dflash"],
            ["--method", "reanchor", "--rule", "verifier_path=attach"],
            [],
        )
    }
    assert len(answers) == 1


def test_compare(generate):
    result = generate("--prompt", "Hi", "--max-new-tokens", "16", "--compare", "--json")
    compared = json.loads(result.stdout)["compare"]
    assert list(compared) == ["plain", "dflash", "reanchor", "auto"]
    assert [each["identical_tokens"] for each in compared.values()] == ["yes"] * 4
    assert compared["plain"]["stats"]["tau"] == 1 and compared["plain"]["stats"]["nodes_per_round"] == 1
    assert compared["dflash"]["stats"]["blocks_per_round"] <= 1
    assert compared["dflash"]["tokens"] == compared["plain"]["tokens"]
    assert re.search(r"identical tokens +│ +yes │ +yes │ +yes │ +yes", result.stderr)


def test_compare_shows_the_method_that_was_asked_for(generate):
    arguments = ("--prompt", "Hi", "--max-new-tokens", "6", "--method", "ddtree", "--max-nodes", "9")
    compared = json.loads(generate(*arguments, "--compare", "--json").stdout)["compare"]
    assert list(compared) == ["plain", "dflash", "reanchor", "ddtree"]
    assert {each["identical_tokens"] for each in compared.values()} == {"yes"}


def test_a_difference_is_found_and_weighed(pair):
    from reanchor.loading import load_pair
    from reanchor_cli.decode_run import Request, run_method

    loaded = load_pair(*pair, device="cpu")
    request = Request(ids_of("Hi"), SamplingConfig(max_new_tokens=8))
    plain = run_method(loaded, request, DecodeConfig(method="plain"))
    assert difference(loaded, request, plain, plain) is None
    for tokens, index in (
        ([*plain.tokens[:5], 95, *plain.tokens[6:]], 5),
        (plain.tokens[:3], 3),
    ):
        other = type(plain)(**{**vars(plain), "tokens": tokens})
        found = difference(loaded, request, plain, other)
        ids = torch.tensor([request.ids + plain.tokens[:index]])
        best = loaded.target(ids).logits[0, -1].detach().sort(descending=True).values
        assert found.startswith(f"first difference at {index}, top-2 logit gap ")
        assert float(found.rpartition(" ")[2]) == pytest.approx(float(best[0] - best[1]), rel=5e-3)


def test_show_trie(generate, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    arguments = ("--prompt", "Hi", "--max-new-tokens", "16", "--show-round", "2", "--method", "reanchor")
    result = generate(*arguments)
    rounds = json.loads(generate(*arguments, "--json").stdout)["stats"]["per_round"]
    rows = re.findall(r"^│ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │ ([^│]*)│", result.stderr, re.M)
    drawn = [(int(blocks), int(nodes), int(tokens)) for _, blocks, nodes, tokens, _ in rows]
    assert drawn == [(each["blocks"], each["nodes"], each["tokens"]) for each in rounds]
    for each, (*_, marks) in zip(rounds, rows, strict=True):
        assert sum(mark.startswith("s") for mark in marks.split()) == each["from_shifted"]
        assert sum(mark != "+" for mark in marks.split()) == each["accepted"]
    tree = result.stderr.split("round 2: anchor")[1]
    assert (
        len(re.findall(r"[└├]── ", tree)) == rounds[1]["nodes"]
    )  # the anchor is the root, the arrow one more
    assert tree.count("✓") == rounds[1]["accepted"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", " \n"], "the prompt is empty"),
        (["--prompt", "a", "--prompt-file", "b"], "are both given"),
        (["--prompt-file", "/no/such/file"], "cannot read --prompt-file /no/such/file: No such file"),
        (["--prompt", "x" * 600], "the prompt has 60. tokens and the target's context 512"),
        (["--prompt", "a", "--rule", "attach=nearest"], "attach must be one of earliest, fixed"),
        (["--prompt", "a", "--method", "magic"], "'magic' is not one of"),
        (["--prompt", "a", "--max-nodes", "0"], "max_nodes must be at least 1"),
        (["--prompt", "a", "--max-nodes", "300000"], "at most 4096, got 300000"),
        (["--prompt", "a", "--rule", "max_shifts=-1"], "max_shifts must not be negative, got -1"),
        (["--prompt", "a", "--max-new-tokens", "0"], "max_new_tokens must be at least 1, got 0"),
        (["--prompt", "a", "--temperature", "-0.5"], "temperature must be 0 .* got -0.5"),
        (["--prompt", "a", "--temperature", "1e-40"], "temperature 1e-40 .* 0 for greedy"),
        (
            ["--prompt", "a", "--temperature", "1", "--seed", str(10**30)],
            "seed must fit in 64 bits, got 1000",
        ),
        (["--prompt", "a", "--top-p", "0"], r"top_p must lie in \(0, 1\], got 0.0"),
        (["--prompt", "a", "--top-p", "1.5"], r"top_p must lie in \(0, 1\], got 1.5"),
        (["--prompt", "a", "--top-k", "-3"], "top_k must be 0 .* got -3"),
        (["--prompt", "a", "--stop", ""], "--stop '' would stop at once"),
        (["--prompt", "a", "--device", "cuda:9"], "device cuda:9 isn't there: this machine has cpu"),
        (["--prompt", "a", "--dtype", "int8"], "dtype must be one of float32"),
        (["--prompt", "a", "--target", "/no/such"], "'/no/such' isn't there; give a checkpoint's folder"),
        (["--prompt", "a", "--drafter", "/no/such"], "/no/such"),
        (["--prompt", "a", "--raw", "--system", "b"], "--system needs a chat template, but --raw"),
        (
            ["--prompt", "a", "--show-round", "999"],
            "--show-round 999 isn't there: this decode had rounds 1 to",
        ),
        (["--prompt", "a", "--no-such-knob"], "No such option '--no-such-knob'"),
    ],
)
def test_bad_input_is_exit_code_2(generate, arguments, message):
    result = generate(*arguments)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert re.search(message, " ".join(result.stderr.split())), result.stderr


def test_input_that_is_no_text(generate, tmp_path):
    file = tmp_path / "latin.txt"
    file.write_bytes("café".encode("latin-1"))
    for result in (generate("--prompt-file", str(file)), generate(input=file.read_bytes())):
        assert result.exit_code == 2 and "is not UTF-8 (byte 0xe9 at offset 3)" in result.stderr


def test_no_template_no_thinking(pair, generate, tmp_path):
    bare = str(write_target(tmp_path / "bare", template=None))
    fixed = str(write_target(tmp_path / "fixed", template="{{ messages[0].content }}"))
    failing = str(write_target(tmp_path / "failing", template="{{ raise_exception('no system role') }}"))
    result = generate("--target", bare, "--prompt", "Hi", "--max-new-tokens", "6", "--json")
    assert json.loads(result.stdout)["tokens"] == expected(pair, "Hi", 6)
    for target, arguments, message in (
        (bare, ["--system", "x"], "the target's tokenizer has no chat template"),
        (fixed, ["--no-thinking"], "template knows no thinking mode"),
        (failing, [], "chat template refuses this prompt: no system role"),
    ):
        result = generate("--target", target, "--prompt", "Hi", *arguments)
        assert result.exit_code == 2 and message in " ".join(result.stderr.split())


def run_process(command: str, pair: tuple[Path, Path]) -> subprocess.CompletedProcess[str]:
    reanchor = (
        f"{sys.executable} -m reanchor_cli generate --target {pair[0]} --drafter {pair[1]} --device cpu"
    )
    command = f"{reanchor} --prompt Hi --max-new-tokens 300 {command}"
    environment = {
        **os.environ,
        "HF_HOME": str(pair[0].parent / "cache"),
    }  # costs of no use to the user
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.mark.parametrize("where", ["| head -c 4 >/dev/null; exit ${PIPESTATUS[0]}", ">&-", ">/dev/full"])
def test_a_closed_stdout_leaves_no_traceback(pair, where):
    result = run_process(where, pair)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("Error: standard output")


def test_text_arrives_before_the_end_and_whole():
    """Byte-level tokens, one at a time: every write is whole characters, and together they are the text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    by_bytes = PreTrainedTokenizerFast(tokenizer_object=core)
    text = "héllo, 你好 🙂\nend"
    written: list[str] = []
    stream = AnswerStream(by_bytes, written.append)
    stream.put(torch.tensor([[1, 2, 3]]))  # the prompt
    for token in by_bytes(text).input_ids:
        stream.put(torch.tensor([token]))
    assert (
        "".join(written) == text
        and all("\ufffd" not in each for each in written)
        and len(written) == len(text)
    )
    stream.put(torch.tensor(by_bytes("é").input_ids[:1]))
    stream.end()
    assert "".join(written) == text + "\ufffd\n"  # what the model left unfinished is shown as such


def test_every_knob_is_an_option_with_its_help():
    shown = " ".join(CliRunner().invoke(main, ["generate", "-h"], terminal_width=400).output.split())
    rules = [f"{each.name}: {each.metadata['help']}" for each in fields(ReAnchorRules)]
    assert "--rule NAME=VALUE" in shown and all(rule in shown for rule in rules)
    knobs = [each for each in fields(DecodeConfig) if each.name != "rules"]
    for knob in (*knobs, *fields(SamplingConfig)):
        assert f"--{knob.name.replace('_', '-')} " in shown
        assert " ".join(knob.metadata["help"].split()) in shown
        if isinstance(knob.default, bool):
            assert f"[default: {'' if knob.default else 'no-'}{knob.name.replace('_', '-')}]" in shown
        elif knob.default is not None:
            assert f"[default: {knob.default}]" in shown


def test_options_of_any_dataclass():
    @dataclass(frozen=True)
    class Knobs:
        count: int | None = field(default=None, metadata={"help": "How many."})
        kind: Literal["a", "b"] = field(default="a", metadata={"help": "Which."})
        fast: bool = field(default=True, metadata={"help": "Whether."})

    @click.command()
    @options(Knobs)
    def command(**given: Any) -> None:
        click.echo(repr(config_from(Knobs, given)) + repr(given))

    def output(*arguments: str) -> str:
        return CliRunner().invoke(command, arguments).output.strip().split(".")[-1]

    assert output() == "Knobs(count=None, kind='a', fast=True){}"
    assert output("--count", "3", "--kind", "b", "--no-fast") == "Knobs(count=3, kind='b', fast=False){}"
    assert "'c' is not one of" in CliRunner().invoke(command, ["--kind", "c"]).output


def test_version():
    import reanchor

    assert CliRunner().invoke(main, ["--version"]).output.strip().endswith(reanchor.__version__)


README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.splitlines()]


@pytest.mark.parametrize("line", [line for line in COMMANDS if "reanchor" in line.split("#")[0]])
def test_the_commands_of_the_readme(demo_pair, line):
    """As they stand there, on the embedded pair, through the shell."""
    shell = f'reanchor() {{ {sys.executable} -m reanchor_cli "$@"; }}; set -o pipefail; {line}'
    result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() and "acceptance length" in result.stderr
    if "--compare" in line:
        assert re.search(r"identical tokens +│ +yes │ +yes │ +yes │ +yes", result.stderr)


def test_the_make_targets_of_the_readme():
    makefile = (ROOT / "Makefile").read_text()
    targets = [line.split()[1] for line in COMMANDS if line.startswith("make ")]
    assert targets == ["demo", "test"] and all(f"\n{target}:" in makefile for target in targets)


SCRIPTS = {path.name: path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))}
SCRIPTS |= {f"README {n}": code for n, code in enumerate(re.findall(r"```python\n(.*?)```", README, re.S))}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_that_users_are_shown(demo_pair, name, capsys):
    code = SCRIPTS[name]
    assert len(code.splitlines()) < 40
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert len(printed) > 40 and "other tokens" not in printed


def test_graphs_are_told_of_and_change_nothing(generate, monkeypatch):
    """The capture of a device stands still here: what is tested is that its progress reaches the user."""
    from reanchor.fused.graph_runner import CapturedGraph, GraphRunner

    terms = ("--prompt", "Hi", "--max-new-tokens", "12", "--method", "reanchor")
    plain, eager = generate(*terms), generate(*terms, "--graphs", "--verbose")
    assert eager.stdout == plain.stdout and "rounds in one call" in eager.stderr
    assert "Capturing" not in eager.stderr and "no CUDA" in eager.stderr

    own = GraphRunner.__init__

    def on_a_device(self, target, _capture, say):
        own(self, target, False, say)
        self.capturing = True

    monkeypatch.setattr(GraphRunner, "__init__", on_a_device)
    monkeypatch.setattr(CapturedGraph, "capture", lambda self, *_where: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 0)
    told = generate(*terms, "--graphs")
    assert told.stdout == plain.stdout
    assert "Capturing the graph of a round of" in told.stderr and "Capturing" not in told.stdout
