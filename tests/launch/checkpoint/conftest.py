"""Checkpoints that are quickly made, and what lies on the disk afterwards."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from launch.checkpoint import collect, write

STATE = {"epoch": 3, "samples": 77, "groups": [[{"lr": 1e-3, "betas": [0.9, 0.999]}]]}


@pytest.fixture
def state() -> dict[str, Any]:
    return STATE


@pytest.fixture
def model() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, generator=generator)
    bias = torch.randn(3, dtype=torch.float64, generator=generator)
    return {"b.weight": weight, "a.bias": bias}


@pytest.fixture
def save(model) -> Callable[..., Path]:
    """``save(folder, 7)`` writes a checkpoint of step 7 and returns its path."""
    standard = model

    def run(
        folder: Path,
        step: int,
        model: Mapping[str, Tensor] | None = None,
        optimizer: Mapping[str, Tensor] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> Path:
        held = standard if model is None else model
        return write(folder, collect(step, held, optimizer or {}, state or {}))

    return run


@pytest.fixture
def files_of() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder with its bytes, links left out."""
    return lambda folder: {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not p.is_symlink()
    }


@pytest.fixture
def run_child() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a process of its own; tests of kill and of limits end it."""

    def run(code: str, *args: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
        root = Path(__file__).parents[3]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=root)

    return run
