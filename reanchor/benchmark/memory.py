"""Peak memory while something runs: of the device where it has its own, of the process on Linux elsewhere."""

from __future__ import annotations

from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif RESET.exists():
        try:
            RESET.write_text("5")
        except OSError:  # a container may forbid it; the peak is then the process's since its start
            return


def peak(device: torch.device) -> int | None:
    """Bytes at the peak since the reset; None where the machine does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if not STATUS.exists():
        return None
    line = next((line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM")), None)
    return int(line.split()[1]) * 1024 if line else None
