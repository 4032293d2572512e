"""What a process takes beyond what it had before there was a model."""

from __future__ import annotations

import ctypes
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

STATUS = Path("/proc/self/status")  # Linux
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt(3)
GIVEN_BACK = 64 * 1024  # bytes: blocks from this size on are given back when they are freed
USUAL = 32 * 1024 * 1024  # what glibc comes to by itself in a program that frees large blocks


class Beyond:
    """Memory beyond that of now, at most between ``begin`` and ``settle``; of a GPU torch's.

    On the CPU it is resident memory, read from /proc on Linux; elsewhere what the system says was
    the most so far, which is too little where a process needed more before. glibc keeps freed
    memory, so that a process seems to need more than it does: meanwhile it gives large blocks back.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._peak = device, 0
        self._is_settled = False
        if device.type == "cuda":
            self._base = torch.cuda.memory_allocated(device)
            return
        _give_back(GIVEN_BACK)
        self._base = resident("VmRSS")

    def begin(self) -> None:
        """Forget what was needed to get ready: the peak is from here on."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def settle(self) -> int:
        """Return the most bytes until this was first called."""
        if self._is_settled:
            return self._peak
        self._is_settled = True
        if self._device.type == "cuda":
            self._peak = torch.cuda.max_memory_allocated(self._device) - self._base
        else:
            self._peak = max(0, resident("VmHWM") - self._base)
            _give_back(USUAL)
        return self._peak


def _give_back(threshold: int) -> None:
    """Let glibc give back freed blocks of ``threshold`` bytes; other libraries are left alone."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, threshold)
        library.mallopt(TRIM_THRESHOLD, 2 * threshold)
        library.malloc_trim(0)


def resident(name: str) -> int:
    """Return this process's VmRSS, now, or VmHWM, at most, in bytes."""
    if STATUS.exists():
        words = STATUS.read_text().split()
        return int(words[words.index(f"{name}:") + 1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024  # bytes, or KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def warm_up(device: torch.device, dtype: torch.dtype = torch.float32) -> None:
    """Load what kernels load when they are first used, so that it is not taken for the model's."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        pictures = torch.rand(2, 3, 16, 16, device=device, dtype=dtype)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(4096, 64)
        ).to(device, dtype)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            split = model(pictures).view(2, 2, 4, 8)
            seen: Tensor = functional.scaled_dot_product_attention(split, split, split)
            functional.layer_norm(functional.gelu(seen), [8]).sum().backward()
            optimizer.step()
