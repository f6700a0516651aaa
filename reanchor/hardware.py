"""Names of devices, and their synchronisation."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch


def hardware(device: torch.device) -> str:
    """The name of what computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {os.cpu_count()} cores" if device.type == "cpu" else device.type


def cpu_name() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def synchronizer(device: torch.device) -> Callable[[], None] | None:
    """What makes a device finish its work; None where there is nothing to wait for."""
    return getattr(torch, device.type).synchronize if device.type in ("cuda", "mps", "xpu") else None
