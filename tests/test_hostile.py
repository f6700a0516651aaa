"""Checkpoints, prompts and names that were made to hurt: each ends in one sentence and exit code 2, soon."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from reanchor_cli.main import main

from .checkpoints import write_drafter, write_target


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    write_target(root / "target")
    write_drafter(root / "drafter")
    return root


@pytest.fixture
def pair(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "pair"))


def generate(pair: Path, *arguments: str, input: bytes | str | None = "Hi") -> Result:
    places = ("--target", str(pair / "target"), "--drafter", str(pair / "drafter"), "--device", "cpu")
    new = ("--max-new-tokens", "4", "--method", "reanchor")
    return CliRunner().invoke(main, ["generate", *places, *new, *arguments], input=input)


def refused(result: Result, *said: str) -> None:
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), repr(result.exception)
    assert "Traceback" not in result.output
    for each in said:
        assert each in " ".join(result.stderr.split()), result.stderr


def change(file: Path, **keys: object) -> None:
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, **keys}))


# code of a checkpoint


def test_code_in_a_folder_is_neither_run_nor_asked_about(pair, tmp_path, monkeypatch):
    ran, asked = tmp_path / "ran", []
    monkeypatch.setattr("builtins.input", lambda *question: asked.append(question) or "y")
    code = f"open({str(ran)!r}, 'w')\n"
    for name in ("evil.py", "custom_generate/generate.py"):
        (pair / "target" / name).parent.mkdir(exist_ok=True)
        (pair / "target" / name).write_text(code)
    change(pair / "target" / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "evil.Tokenizer"]})
    plain = generate(pair)
    change(
        pair / "target" / "config.json",
        model_type="evil",
        auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    )
    refused(generate(pair, input="y\n"), "trust_remote_code")
    assert plain.exit_code == 0 and not asked and not ran.exists()


# files


@pytest.mark.parametrize("part", ["target", "drafter"])
@pytest.mark.parametrize("kind", ["pipe", "zero", "deep", "huge", "digits"])
def test_a_config_that_is_no_file_to_read(pair, part, kind):
    file = pair / part / "config.json"
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "zero":
        file.symlink_to("/dev/zero")
    elif kind == "deep":
        file.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    elif kind == "huge":
        with file.open("w") as stream:
            stream.truncate(1 << 34)
    else:
        file.write_text('{"hidden_size": ' + "9" * 5000 + "}")
    refused(generate(pair), "config.json")


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json", "model.safetensors"])
def test_other_files_of_a_target_are_regular_too(pair, name):
    (pair / "target" / name).unlink()
    os.mkfifo(pair / "target" / name)
    refused(generate(pair), name, "is no regular file")


@pytest.mark.parametrize("part", ["target", "drafter"])
@pytest.mark.parametrize("place", ["../outside.safetensors", "/outside.safetensors", "", 7])
def test_an_index_stays_in_its_folder(pair, part, place):
    folder = pair / part
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(pair / "outside.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, place)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(generate(pair), "names", "which is no file of its folder")


@pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
def test_an_index_without_a_map(pair, weight_map):
    (pair / "drafter" / "model.safetensors").rename(pair / "drafter" / "model-1.safetensors")
    (pair / "drafter" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    refused(generate(pair), "has no weight_map")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than"),
        ("{{ 'x' * 30000000000 }}", "not enough memory"),
            ("{% set n = namespace(s='xx') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}", ""),
        ("{{ raise_exception('no') }}", "no"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% if %}", "template"),
        ("{{ (" * 5000, "template"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages[3].content }}", "template"),
    ],
)  # fmt: skip
def test_a_template_is_bounded(pair, template, said, monkeypatch):
    monkeypatch.setattr("reanchor.chat.SECONDS", 0.5, raising=False)
    (pair / "target" / "chat_template.jinja").write_text(template)
    refused(generate(pair), said)


# configs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 4000),
        ("num_hidden_layers", 10**6),
        ("num_hidden_layers", 10**30),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", "6"),
        ("num_hidden_layers", 2.5),
        ("hidden_size", 1 << 17),
        ("hidden_size", 10**12),
        ("hidden_size", -32),
        ("intermediate_size", 1 << 21),
        ("vocab_size", 1 << 23),
        ("vocab_size", True),
        ("num_attention_heads", 0),
        ("num_attention_heads", 3),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", 3),
        ("head_dim", 0),
        ("max_position_embeddings", 0),
        ("max_position_embeddings", []),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", float("inf")),
        ("rms_norm_eps", -1e-6),
        ("rms_norm_eps", "small"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": float("nan")}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": -1.0}),
        ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": float("inf")}),
        ("rope_parameters", 7),
        ("hidden_act", "magic"),
        ("hidden_act", 7),
        ("dtype", "float3"),
        ("model_type", ["llama"]),
        ("architectures", "LlamaForCausalLM"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}),
        ("quantization_config", {"quant_method": "abacus"}),
        ("quantization_config", 4),
        ("tie_word_embeddings", "yes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_targets_config_out_of_reason(pair, name, value):
    change(pair / "target" / "config.json", **{name: value})
    refused(generate(pair), "cannot load the target")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 10**6),
        ("num_hidden_layers", 10**30),
        ("block_size", 10**5),
        ("block_size", 10**12),
        ("block_size", "16"),
        ("hidden_size", 10**12),
        ("num_attention_heads", 0),
        ("num_key_value_heads", 0),
        ("head_dim", 0),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", "x"),
        ("rope_theta", float("inf")),
        ("rope_theta", -5),
        ("rope_theta", "x"),
        ("rope_scaling", [1]),
        ("rope_scaling", {"rope_type": "yarn", "factor": "x"}),
        ("layer_types", "full_attention"),
        ("hidden_act", ["silu"]),
        ("dflash_config", 5),
        ("max_position_embeddings", -1),
        ("vocab_size", 10**12),
        ("architectures", 5),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_drafters_config_out_of_reason(pair, name, value):
    change(pair / "drafter" / "config.json", **{name: value})
    inner = json.loads((pair / "drafter" / "config.json").read_text())
    if isinstance(inner.get("dflash_config"), dict) and name in inner["dflash_config"]:
        change(pair / "drafter" / "config.json", dflash_config={**inner["dflash_config"], name: value})
    refused(generate(pair), "")
    refused(CliRunner().invoke(main, ["inspect", str(pair / "drafter")]), name)


def test_damaged_files_of_a_target(pair):
    folder = pair / "target"
    for name, damage in (
        ("tokenizer.json", b'{"version": "1.0", "model": 7}'),
        ("model.safetensors", b"\xff" * 64),
    ):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(damage)
        refused(generate(pair), "cannot load the")
        (folder / name).write_bytes(before)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not a pickle")
    refused(generate(pair), "cannot load the target")


def test_a_drafter_with_tensors_of_another_kind(pair):
    tensors = load_file(pair / "drafter" / "model.safetensors")
    tensors["fc.weight"] = torch.full_like(tensors["fc.weight"], float("nan"))
    save_file(tensors, pair / "drafter" / "model.safetensors")
    refused(generate(pair), "holds NaN")


# prompts and names


def test_a_prompt_longer_than_any_context_is_not_tokenized_whole(pair, monkeypatch):
    refused(generate(pair, input="x y" * 300_000), "target's context of 512 tokens; shorten it")
    refused(generate(pair, "--prompt-file", "/dev/zero", input=None), "more than 16 MB")
    refused(generate(pair, input=b"a" * (17 << 20)), "more than 16 MB")


@pytest.mark.parametrize("option", ["--prompt", "--system", "--stop"])
def test_half_a_character_is_refused_by_its_option(pair, option):
    prompt = () if option == "--prompt" else ("--prompt", "Hi")
    refused(
        generate(pair, *prompt, option, "a\udc80"),
        "prompt" if option == "--prompt" else option,
        "half of one",
    )


def test_half_a_character_in_a_file_of_prompts(pair, tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"turns": ["a"]}\n{"turns": ["\\ud800"]}\n')
    arguments = [
        "bench",
        "--prompts",
        str(file),
        "--target",
        str(pair / "target"),
        "--drafter",
        str(pair / "drafter"),
    ]
    refused(CliRunner().invoke(main, arguments), f"{file.name}, line 2", "half of a character")


BAD = {"empty": "", "nobody": "~nosuchuser/x", "long": "x" * 5000, "nul": "a\0b"}


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "--prompt", "a", "--target"],
        ["generate", "--prompt", "a", "--drafter"],
        ["generate", "--prompt-file"],
        ["inspect"],
        ["bench", "--prompts"],
        ["bench", "--data-dir"],
        ["bench", "--plots"],
        ["bench", "--output"],
        ["bench", "--baseline"],
        ["bench", "--report"],
        ["train", "responses", "--prompts", "{prompts}", "--out"],
        ["train", "responses", "--out", "x", "--prompts"],
        ["train", "responses", "--prompts", "{prompts}", "--out", "x", "--features"],
        ["train", "drafter", "--out", "x", "--responses"],
        ["train", "drafter", "--responses", "x", "--out"],
        ["train", "drafter", "--recipe"],
        ["doctor", "--context", "9", "--drafter"],
    ],
    ids=lambda words: " ".join(words[-1:]),
)
def test_names_that_no_file_can_have(whole, tmp_path, monkeypatch, arguments, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"turns": ["Hi"]}\n')
    more = [] if "--target" in arguments or arguments[0] == "inspect" else ["--target", str(whole / "target")]
    if arguments[0] in ("bench", "generate") and "--drafter" not in arguments:
        more += ["--drafter", str(whole / "drafter"), "--max-new-tokens", "2"]
    given = [each.format(prompts=tmp_path / "p.jsonl") for each in arguments]
    if arguments[0] == "bench":
        sets = ["--dataset", "demo"] if "--data-dir" in given else ["--prompts", str(tmp_path / "p.jsonl")]
        given[1:1] = [*sets, "--method", "plain"]
    if arguments[-1] == "--baseline":
        more += ["--analysis", "carried"]
    result = CliRunner().invoke(main, [*given, name, *more])
    assert result.exit_code == (1 if arguments[0] == "doctor" else 2), (result.output, result.exception)
    assert isinstance(result.exception, SystemExit) and "Traceback" not in result.output
