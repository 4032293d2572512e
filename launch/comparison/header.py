"""Under what circumstances a comparison was made, and the lines that say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from launch.comparison.figures import counted
from launch.comparison.turns import Found, Turn

BUSY = 0.15  # of the cores at work for others: more shows in step times


@dataclass(frozen=True)
class Header:
    """What is known before any row runs.

    name: of the configuration. command: as typed. machine: "2 cores", "4 x NVIDIA H200".
    cores: of the machine. devices: GPUs, or on a CPU shares of the cores. batch: the
    configuration's own. date: ISO 8601. versions: "torch" → "2.13.0".
    asked: what was compared, to know it again. spent_s: seconds that all runs of it took.
    """

    name: str
    command: str
    machine: str
    cores: int
    devices: int
    batch: int
    date: str
    versions: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    spent_s: float = 0.0


def head(header: Header, found: Sequence[Found]) -> list[str]:
    """Return what stands above the table: one line, and another if the machine was busy."""
    turns = [turn for each in found for turn in each.timed]
    parts = [
        f"{header.name}: {header.machine}",
        counted(header.devices, "device"),
        f"global batch {header.batch:,}",
    ]
    if not turns:
        return [", ".join([*parts, "nothing timed yet"])]
    rounds, steps = len({turn.round for turn in turns}), _steps(turns)
    before = load(turns)
    parts += [f"{counted(rounds, 'round')} of {steps}", f"load before turns {before:.1f}"]
    lines = [", ".join(parts)]
    if before > BUSY * header.cores:
        cores = counted(header.cores, "core")
        lines.append(
            f"the machine was busy: load {before:.1f} on {cores} before turns; "
            "step times hold other work too"
        )
    return lines


def load(turns: Sequence[Turn]) -> float:
    """Return the cores that others kept busy, the median over turns."""
    return median(turn.load for turn in turns)


def _steps(turns: Sequence[Turn]) -> str:
    """Return "50 steps", or "20 to 50 steps" where turns differ."""
    lengths = [turn.last - turn.first + 1 for turn in turns]
    least, most = min(lengths), max(lengths)
    return counted(most, "step") if least == most else f"{least:,} to {most:,} steps"
