"""Published drafters, the targets they were trained for, and the thinking mode their training text was in.

What the publishers say of their own checkpoints; docs/drafters.md shows the same table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

AUTO = "auto"


@dataclass(frozen=True)
class Published:
    drafter: str  # hub id
    target: str  # hub id
    family: str
    thinking: bool | None = None  # trained on answers with it on, off; None: not said, or the target has none


def zlab(drafter: str, target: str, thinking: bool | None = None) -> Published:
    return Published(f"z-lab/{drafter}", target, "DFlash", thinking)


def deepspec(name: str, target: str) -> list[Published]:
    """DeepSpec publishes both for each of its targets."""
    return [
        Published(f"deepseek-ai/dspark_{name}_block7", target, "DSpark", False),
        Published(f"deepseek-ai/dflash_{name}_block7", target, "DFlash", False),
    ]


# Of several for one target, the first is what `auto` takes.
TABLE: tuple[Published, ...] = (
    zlab("Qwen3-4B-DFlash-b16", "Qwen/Qwen3-4B", False),
    zlab("Qwen3-8B-DFlash-b16", "Qwen/Qwen3-8B", False),
    *deepspec("qwen3_4b", "Qwen/Qwen3-4B"),
    *deepspec("qwen3_8b", "Qwen/Qwen3-8B"),
    *deepspec("qwen3_14b", "Qwen/Qwen3-14B"),
    Published("Huang2020/Qwen3-4B-Domino-b16", "Qwen/Qwen3-4B", "Domino", False),
    Published("Huang2020/Qwen3-8B-Domino-b16", "Qwen/Qwen3-8B", "Domino", False),
    Published("RedHatAI/Qwen3-8B-speculator.dflash", "Qwen/Qwen3-8B", "DFlash"),
    Published("RedHatAI/Qwen3-8B-speculator.dflash2", "Qwen/Qwen3-8B", "DFlash 2", False),
    Published("Dogacel/Qwen3-8B-DSpark", "Qwen/Qwen3-8B", "DSpark"),
    Published("Eros483/Qwen3-0.6B-Domino-b8", "Qwen/Qwen3-0.6B", "Domino"),
    Published(
        "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.dflash", "Qwen/Qwen3-30B-A3B-Instruct-2507", "DFlash"
    ),
    zlab("Qwen3-Coder-30B-A3B-DFlash", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
    zlab("LLaMA3.1-8B-Instruct-DFlash-UltraChat", "meta-llama/Llama-3.1-8B-Instruct"),
    zlab("gpt-oss-20b-DFlash", "openai/gpt-oss-20b"),
    zlab("gpt-oss-120b-DFlash", "openai/gpt-oss-120b"),
    zlab("gemma4-12B-it-DFlash", "google/gemma-4-12B-it"),
    *deepspec("gemma4_12b", "google/gemma-4-12B-it"),
    zlab("gemma-4-26B-A4B-it-DFlash", "google/gemma-4-26B-A4B-it"),
    zlab("gemma-4-31B-it-DFlash", "google/gemma-4-31B-it"),
    Published("RedHatAI/gemma-4-31B-it-speculator.dflash2", "google/gemma-4-31B-it", "DFlash 2"),
    zlab("Qwen3.5-4B-DFlash", "Qwen/Qwen3.5-4B"),
    zlab("Qwen3.5-9B-DFlash", "Qwen/Qwen3.5-9B"),
    zlab("Qwen3.5-27B-DFlash", "Qwen/Qwen3.5-27B"),
    zlab("Qwen3.5-35B-A3B-DFlash", "Qwen/Qwen3.5-35B-A3B", thinking=True),
    zlab("Qwen3.5-122B-A10B-DFlash", "Qwen/Qwen3.5-122B-A10B"),
    zlab("Qwen3.5-397B-A17B-DFlash", "Qwen/Qwen3.5-397B-A17B"),
    zlab("Qwen3.6-27B-DFlash", "Qwen/Qwen3.6-27B"),
    zlab("Qwen3.6-35B-A3B-DFlash", "Qwen/Qwen3.6-35B-A3B"),
    zlab("Qwen3-Coder-Next-DFlash", "Qwen/Qwen3-Coder-Next"),
)


def drafter_of(target: str | Path) -> Published:
    """What `auto` takes for a target, named by its hub id or a folder called like the model."""
    name = str(target).rstrip("/")
    for entry in TABLE:
        if name.lower() == entry.target.lower():
            return entry
    folder = Path(name).name.lower()
    for entry in TABLE:
        if Path(name).is_dir() and folder == entry.target.split("/")[1].lower():
            return entry
    known = ", ".join(dict.fromkeys(entry.target for entry in TABLE))
    raise ValueError(
        f"no published drafter is known for the target {name!r}; name one, or use a target of: {known}"
    )


def find(drafter: str | Path) -> Published | None:
    """The entry of a drafter named by its hub id, or of a folder called like it."""
    name = str(drafter).rstrip("/").lower()
    for entry in TABLE:
        if name == entry.drafter.lower() or Path(name).name == entry.drafter.split("/")[1].lower():
            return entry
    return None


def thinking_mismatch(drafter: str | Path, thinking: bool) -> str | None:
    """A warning when answers are asked for in another thinking mode than the drafter's training text had."""
    entry = find(drafter)
    if entry is None or entry.thinking is None or entry.thinking == thinking:
        return None
    trained, asked = ("on", "off") if entry.thinking else ("off", "on")
    flag = "--thinking" if entry.thinking else "--no-thinking"
    return (
        f"{entry.drafter} was trained with thinking {trained} and this prompt has it {asked}: expect far fewer "
        f"accepted drafts; {flag} changes it"
    )
