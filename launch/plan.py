"""Plan: ``python -m launch.plan [FILE.yaml ...] [key=value ...]`` tells what fits, and how fast."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from launch.config import ConfigError, help_text, load, parse
from launch.entry import enter
from launch.planning.advice import advise, remedies
from launch.planning.machine import Wanted, find_machine
from launch.planning.outlook import foresee
from launch.planning.report import as_json, text
from launch.planning.sizes import parse_bytes, parse_speed

FLAGS: dict[str, type] = {
    "help": bool,
    "json": bool,
    "all": bool,
    "nodes": int,
    "gpus-per-node": int,
    "bandwidth": str,
    "device-memory": str,
    "device-tflops": float,
}
HELP = (
    ("--help", "show this"),
    ("--nodes N", "nodes alike; 1 without it"),
    ("--gpus-per-node G", "GPUs of each, here or not; without it this machine's, or else its CPU"),
    ("--bandwidth B", "of the slowest link that a step crosses, a second: 100Gbit, 12GiB"),
    ("--device-memory M", "of each device: 24GiB, 24GB, 512MiB"),
    ("--device-tflops X", "10^12 operations a second that a device reaches; times are counted"),
    ("--all", "more microbatch counts, gpipe, accumulation"),
    ("--json", "print the same as JSON"),
)


def main(args: list[str]) -> int:
    """Print what to expect of each way, and which to take; return the exit code."""
    words = parse(args, FLAGS)
    flags = words.flags
    if flags["help"]:
        sys.stdout.write(help_text("launch.plan", HELP) + "\n")
        return 0
    wanted = _wanted(flags)
    config = load(words.files, words.overrides)
    outlook = foresee(config, find_machine(config, wanted), every=flags["all"])
    advice = advise(outlook, [*map(str, words.files), *words.overrides])
    others = [] if advice.prospect else remedies(outlook.view)
    shown = (
        as_json(outlook, advice, others) + "\n" if flags["json"] else text(outlook, advice, others)
    )
    sys.stdout.write(shown)
    return 0


def _wanted(flags: Mapping[str, Any]) -> Wanted:
    """Return what the flags say of the machine. Raises ``ConfigError``."""
    for name in ("nodes", "gpus-per-node", "device-tflops"):
        value = flags[name]
        if isinstance(value, int | float) and not 0 < value < 1e9:
            raise ConfigError(
                f"--{name}: wanted more than nothing, met {value:g}; such as --{name}=2"
            )
    speed, memory, tflops = flags["bandwidth"], flags["device-memory"], flags["device-tflops"]
    return Wanted(
        nodes=flags["nodes"],
        gpus_per_node=flags["gpus-per-node"],
        bytes_per_s=parse_speed(speed, "bandwidth") if speed is not None else None,
        memory_bytes=parse_bytes(memory, "device-memory") if memory is not None else None,
        flops_per_s=1e12 * tflops if tflops is not None else None,
    )


if __name__ == "__main__":
    enter(main)
