"""Where the answer goes and where the talk goes: encodings, full and closed streams, interruptions, silence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from reanchor.benchmark.results import open_results
from reanchor_cli.main import main

from .checkpoints import write_drafter, write_target

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("streams")
    return write_target(root / "target"), write_drafter(root / "drafter")


def shell(pair: tuple[Path, Path], after: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = (
        f"{sys.executable} -m reanchor_cli generate --target {pair[0]} --drafter {pair[1]} --device cpu --method plain "
        f"--max-new-tokens 5 {after}"
    )
    cache = {"HF_HOME": str(pair[0].parent / "cache")}
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **cache, **environment},
    )


def test_an_answer_that_stdout_cannot_encode_is_written_with_replacements():
    code = "from reanchor_cli.console import write; write('caf\\u00e9 \\u4e2d\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0 and done.stdout == b"caf? ?\n", done.stderr


def test_json_is_ascii(pair, tmp_path):
    named = tmp_path / "caf\u00e9"
    named.symlink_to(pair[0])
    places = ["--target", str(named), "--drafter", str(pair[1]), "--device", "cpu", "--max-new-tokens", "4"]
    done = CliRunner().invoke(main, ["generate", *places, "--prompt", "Hi", "--json"])
    assert done.exit_code == 0 and done.stdout.isascii(), done.output
    assert json.loads(done.stdout)["target"] == str(named)


@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full"])
def test_the_answer_survives_a_lost_stderr(pair, stream):
    whole, lost = shell(pair, "--prompt Hi"), shell(pair, f"--prompt Hi {stream}")
    assert lost.returncode == 0 and lost.stdout == whole.stdout != ""


@pytest.mark.parametrize("where", ["| true; exit ${PIPESTATUS[0]}", ">/dev/full", ">&-"])
def test_a_report_that_nobody_reads_is_no_fault(tmp_path, where):
    code = (
        "import time; from reanchor_cli.console import usage_errors; from reanchor_cli.output import emit_tables\n"
        "from reanchor_cli.data_table import DataTable; import click\n"
        "@click.command()\n"
        "def run():\n"
        "    grid = DataTable('t', ['a']); [grid.add(str(n) * 50) for n in range(3000)]; time.sleep(0.5)\n"
        "    with usage_errors(): emit_tables([grid], False)\n"
        "run()\n"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} {script} {where}"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr and "standard output" in done.stderr, done


def test_quiet_and_short_and_whole(pair):
    places = ["--target", str(pair[0]), "--drafter", str(pair[1]), "--device", "cpu", "--max-new-tokens", "4"]
    said = {}
    for name in ("--quiet", "--verbose", "--no-thinking"):
        done = CliRunner().invoke(main, ["generate", *places, "--prompt", "Hi", "--method", "reanchor", name])
        assert done.exit_code == 0, done.output
        said[name] = done.stderr
    assert said["--quiet"] == ""
    assert "acceptance length" in said["--no-thinking"] and "time split" not in said["--no-thinking"]
    assert "time split" in said["--verbose"]


def test_an_interruption_while_importing_is_130(monkeypatch):
    def interrupted(_name):
        raise KeyboardInterrupt

    monkeypatch.setattr("reanchor_cli.main.import_module", interrupted)
    assert CliRunner().invoke(main, ["generate"]).exit_code == 128 + signal.SIGINT


def test_a_results_file_cut_in_its_header_is_begun_again(tmp_path):
    path = tmp_path / "r.jsonl"
    for kept in (b"", b'{"for', b'{"format": 1, "started": "20'):
        path.write_bytes(kept)
        open_results(path, {"methods": ["plain"]})
        assert path.read_text().startswith('{"format": 1, "methods"')
    other = b"notes of mine without an end"
    path.write_bytes(other)
    with pytest.raises(ValueError, match="is no results file"):
        open_results(path, {"methods": ["plain"]})
    assert path.read_bytes() == other


def test_a_full_disk_keeps_what_was_measured(tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    results = open_results(path, {"methods": ["plain"]})
    before = path.read_bytes()

    class Each:
        def to_dict(self):
            return {"a": 1}

    def full(self, *_arguments, **_options):
        with open(path, "ab") as half:
            half.write(b'{"a"')
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ValueError, match="No space left on device.*what was measured stays"):
        results.append(Each())
    monkeypatch.undo()
    assert path.read_bytes() == before
