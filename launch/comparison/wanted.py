"""What a comparison is asked for: the command line's words, checked."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.config import Config, ConfigError
from launch.config.command import Parsed
from launch.planning.machine import Machine, cpu_cores, find_machine


@dataclass(frozen=True)
class Wanted:
    """A comparison; files, overrides: as typed, for each row's own command.

    machine: the devices, GPUs or shares of the cores. only: beginnings of the names of rows; none:
    all of them.
    """

    config: Config
    files: tuple[Path, ...]
    overrides: tuple[str, ...]
    machine: Machine
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
    def cores(self) -> int:
        """Of a device, where devices are shares of the cores; else 0."""
        return self.machine.cores if self.machine.is_cpu else 0

    @property
    def place(self) -> str:
        """What it is compared on, in words."""
        machine = self.machine
        if not machine.is_cpu:
            return f"{machine.devices} x {machine.name}"
        each = f"{machine.cores} core{'s' if machine.cores > 1 else ''}"
        return f"{machine.devices} CPU processes of {each}"


def wanted(words: Parsed, config: Config) -> Wanted:
    """Return what the words ask for. Raises ``ConfigError``."""
    flags = words.flags
    machine = _machine(config, flags["devices"])
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
        machine,
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


def _machine(config: Config, asked: int | None) -> Machine:
    """Return the devices to compare on: all that are here, or as many as are asked for."""
    found = find_machine(config)
    there, noun = (cpu_cores(), "core") if found.is_cpu else (found.devices_per_node, "GPU")
    if asked is not None and not 0 < asked <= there:
        are = "is" if there == 1 else "are"
        raise ConfigError(
            f"--devices={asked}: wanted 1 to {there}; there {are} {there} {noun}"
            f"{'s' if there > 1 else ''}"
        )
    count = asked or found.devices_per_node
    return replace(found, devices_per_node=count, cores=there // count if found.is_cpu else 1)


def _positive(name: str, value: Any, default: float) -> float:
    if value is None:
        return default
    if not value > 0:
        raise ConfigError(f"--{name}: wanted a number above 0, met {value:g}; such as --{name}=2")
    return float(value)
