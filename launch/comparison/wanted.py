"""What a comparison is asked for: the command line's words, checked."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from launch.config import Config, ConfigError
from launch.config.command import Parsed
from parallel import Place, find_device

MOST = 4  # devices on a CPU, unless more are asked for


@dataclass(frozen=True)
class Wanted:
    """A comparison; files, overrides: as typed, for each row's own command.

    devices: GPUs, or shares of the cores; cores: of such a share, 0 with GPUs. only: beginnings of
    the names of rows; none: all of them.
    """

    config: Config
    files: tuple[Path, ...]
    overrides: tuple[str, ...]
    devices: int
    cores: int
    minutes: float
    limit_s: float
    command: str
    steps: int | None = None
    beside: str | None = None
    only: tuple[str, ...] = ()
    every: bool = False
    scales_batch: bool = False
    is_anew: bool = False

    @property
    def folder(self) -> Path:
        """Where all of it is kept."""
        return Path(self.config.runs, f"compare-{self.config.name}")

    @property
    def machine(self) -> str:
        """What it is compared on, in words."""
        if not self.cores:
            return f"{self.devices} x {torch.cuda.get_device_name(0)}"
        each = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        return f"{self.devices} CPU processes of {each}"


def wanted(words: Parsed, config: Config) -> Wanted:
    """Return what the words ask for. Raises ``ConfigError``."""
    flags = words.flags
    found, cores = _devices(config, flags["devices"])
    if flags["beside"] is not None and not flags["beside"].strip():
        raise ConfigError("--beside wants a command, such as --beside='python train.py'")
    if flags["beside"] is not None and flags["steps"] is None:
        raise ConfigError(
            "--beside wants --steps: how many steps the program trains, so that all rows do the "
            "same; such as --steps=1000"
        )
    return Wanted(
        config,
        words.files,
        words.overrides,
        found,
        cores,
        _positive("minutes", flags["minutes"], 3.0),
        _positive("limit-s", flags["limit-s"], 120.0),
        shlex.join(["python", "-m", "launch.compare", *sys.argv[1:]]),
        None if flags["steps"] is None else int(_positive("steps", flags["steps"], 1)),
        flags["beside"],
        tuple(each.strip() for each in (flags["rows"] or "").split(",") if each.strip()),
        flags["all"],
        flags["scale-batch"],
        flags["anew"],
    )


def _devices(config: Config, asked: int | None) -> tuple[int, int]:
    """Return how many devices there are to compare on, and a device's cores (0: GPUs)."""
    device, _ = find_device(Place(), config.launch.device, config.launch.backend)
    if device.type == "cuda":
        there, noun = torch.cuda.device_count(), "GPU"
    else:
        there, noun = _cores(), "core"
    if asked is not None and not 0 < asked <= there:
        plural = "s" if there > 1 else ""
        raise ConfigError(
            f"--devices={asked}: wanted 1 to {there}; there are {there} {noun}{plural}"
        )
    if device.type == "cuda":
        return asked or there, 0
    count = asked or min(MOST, there)
    return count, there // count


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _positive(name: str, value: Any, default: float) -> float:
    if value is None:
        return default
    if not value > 0:
        raise ConfigError(f"--{name}: wanted a number above 0, met {value:g}; such as --{name}=2")
    return float(value)
