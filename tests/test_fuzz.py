"""Mutated configs, checkpoints, prompts and option values: each run ends in exit code 0 or 2, soon, and no traceback.

Many runs share a process: each costs milliseconds there and seconds alone. A seed makes a case; a failure names it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reanchor_cli.main import main

from .checkpoints import write_drafter, write_target

SECONDS, MEMORY = 20, 2 << 30
FEW, MANY = 12, 150  # cases of a kind: by default, and behind -m slow; there are four kinds
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 2**31, 2**63, 10**30, 0.5, -2.5, 1e308, float("nan"), float("inf"), "", "x",
    "\x00", "../../x", "llama", [], [1], ["full_attention"], [[]], {}, {"rope_type": "yarn"}, "9" * 300,
]  # fmt: skip
WORDS = ["", "0", "1", "-1", "2", "1e9", "nan", "inf", "-inf", "99999999999999999999", "x", "\x00", "ä" * 50, "demo",
         "auto", "../..", "/dev/null", "/dev/zero", "true", "{}", "float16", "cuda:0", "~x/y", "a/b"]  # fmt: skip
OPTIONS = [
    option for option in main.get_command(None, "generate").params if not getattr(option, "is_eager", False)
]
NAMED = [
    option.opts[0]
    for option in OPTIONS
    if not option.is_flag and option.opts[0] not in ("--device", "--target")
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fuzz")
    write_target(root / "target")
    write_drafter(root / "drafter")
    return root


def memory_watch() -> Callable[[], int]:
    """Bytes by which the peak rises above what is held now: other tests of this process have peaks of their own."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        return lambda: 0
    held = memory("VmRSS")
    return lambda: memory("VmHWM") - held


def memory(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peaks cannot be begun anew here")
def test_the_watch_sees_what_a_run_takes() -> None:
    before = memory_watch()
    held = bytearray(300 << 20)
    assert before() > 290 << 20
    del held
    assert memory_watch()() < 50 << 20


def run(pair: Path, *arguments: str, input: bytes = b"Hi") -> None:
    """Whatever it says, it ends by itself and as a command should."""

    def too_long(*_signal: Any) -> None:
        raise TimeoutError(f"longer than {SECONDS} s")

    places = ["--target", str(pair / "target"), "--drafter", str(pair / "drafter"), "--device", "cpu"]
    grown = memory_watch()
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        done = CliRunner().invoke(
            main,
            ["generate", *places, "--max-new-tokens", "3", "--method", "reanchor", *arguments],
            input=input,
        )
    finally:
        signal.alarm(0)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code in (0, 2) and "Traceback" not in done.output, done.output
    assert grown() < MEMORY


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [each for key, part in inner for each in [(*path, key), *places_in(part, (*path, key))]]


def mutated(config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        *way, last = rng.choice(places_in(config))
        inner: Any = config
        for key in way:
            inner = inner[key]
        if rng.random() < 0.15 and isinstance(inner, dict):
            del inner[last]
        else:
            inner[last] = rng.choice(VALUES)
    return config


def config_case(pair: Path, rng: random.Random) -> None:
    part = rng.choice(("target", "drafter"))
    names = (
        ("config.json", "generation_config.json", "tokenizer_config.json")
        if part == "target"
        else ("config.json",)
    )
    file = pair / part / rng.choice((names[0], *names))
    file.write_text(json.dumps(mutated(json.loads(file.read_text()), rng)))
    run(pair)


def bytes_case(pair: Path, rng: random.Random) -> None:
    file = rng.choice([each for each in sorted(pair.rglob("*")) if each.is_file()])
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 4, 40))):
        if len(data) > 1:
            data[rng.randrange(min(len(data), 3000))] = rng.randrange(256)
    if rng.random() < 0.4:
        del data[rng.randrange(len(data)) :]
    file.write_bytes(data)
    run(pair)


def prompt_case(pair: Path, rng: random.Random) -> None:
    kinds = [
        lambda: rng.randbytes(rng.randrange(200)),
        lambda: "".join(chr(rng.randrange(1, 0xD7FF)) for _ in range(rng.randrange(60))).encode(),
        lambda: b"<|im_end|>{{ 7*7 }}{% for %}" * rng.randrange(1, 9),
        lambda: rng.choice((b" ", b"\n", b"a", b"\x00", b"\xff")) * rng.randrange(3000),
        lambda: b"",
    ]
    run(pair, *rng.choice(((), ("--raw",), ("--system", "x"))), input=rng.choice(kinds)())


def option_case(pair: Path, rng: random.Random) -> None:
    given: list[str] = []
    for name in rng.sample(NAMED, rng.choice((1, 1, 2, 3))):
        # a value that is right and large is work, not a fault
        value = rng.choice([each for each in WORDS if name != "--max-new-tokens" or len(each) < 3])
        given += [name, value]
    run(pair, *given)


CASES = {"config": config_case, "bytes": bytes_case, "prompt": prompt_case, "option": option_case}


def fuzz(kind: str, seeds: range, whole: Path, folder: Path) -> None:
    failed = []
    for seed in seeds:
        pair = folder / "pair"
        shutil.copytree(whole, pair)
        try:
            CASES[kind](pair, random.Random(f"{kind} {seed}"))
        except (AssertionError, TimeoutError) as error:
            failed.append(f"{kind} {seed}: {str(error)[:600]}")
        shutil.rmtree(pair)
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("kind", CASES)
def test_some(kind: str, whole: Path, tmp_path: Path) -> None:
    fuzz(kind, range(FEW), whole, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_many(kind: str, whole: Path, tmp_path: Path) -> None:
    fuzz(kind, range(FEW, FEW + MANY), whole, tmp_path)
