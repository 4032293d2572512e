"""How far predictions were off here before: two factors that a comparison leaves behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from launch.config import Config
from launch.folder.disk import replace_text, strict_json
from launch.planning.machine import Machine

LEAST, MOST = 0.1, 10.0  # beyond these a factor corrects nothing: something else is wrong


@dataclass(frozen=True)
class Factors:
    """Measured over foreseen, of times and of bytes; machine: where; date: when."""

    time: float = 1.0
    memory: float = 1.0
    machine: str = ""
    date: str = ""


@dataclass(frozen=True)
class Corrections:
    """The factors that hold here, and what to tell of them: "" for nothing."""

    factors: Factors = Factors()
    note: str = ""


def place_of(config: Config) -> Path:
    """Return where the factors of ``config`` are kept."""
    return Path(config.runs, f"compare-{config.name}", "factors.json")


def read_corrections(path: Path, machine: Machine) -> Corrections:
    """Return the factors in ``path`` if they are of ``machine``; broken files are left alone."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Corrections()
    except (OSError, ValueError) as error:
        return Corrections(note=f"{path} is not used, as it cannot be read: {error}")
    found = _factors(held)
    if found is None:
        return Corrections(
            note=f"{path} is not used: wanted time and memory as numbers from {LEAST:g} to "
            f"{MOST:g}, and machine"
        )
    if found.machine != name_of(machine):
        return Corrections(
            note=f"{path} is not used: it is of {found.machine}, and this is {name_of(machine)}"
        )
    return Corrections(
        found,
        f"corrected by what was measured{f' on {found.date}' if found.date else ''}: "
        f"times x {found.time:.2f}, memory x {found.memory:.2f} ({path})",
    )


def name_of(machine: Machine) -> str:
    """Return what tells one machine from another: its devices and how many."""
    own = f"{machine.devices} x {machine.name}"
    return f"{own}, {machine.cores} core(s) each" if machine.is_cpu else own


def factors_of(
    machine: Machine,
    times: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
) -> Factors:
    """Return the medians of measured over foreseen; times, sizes: (foreseen, measured) pairs."""
    return Factors(_ratio(times), _ratio(sizes), name_of(machine), date.today().isoformat())


def write_factors(path: Path, factors: Factors) -> None:
    """Put ``factors`` in the place of what was there, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, strict_json(asdict(factors)) + "\n")


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    ratios = [measured / foreseen for foreseen, measured in pairs if foreseen > 0 < measured]
    return min(MOST, max(LEAST, median(ratios))) if ratios else 1.0


def _factors(held: Any) -> Factors | None:
    if not isinstance(held, dict) or not isinstance(held.get("machine"), str):
        return None
    time, memory = (_factor(held.get(key)) for key in ("time", "memory"))
    if time is None or memory is None:
        return None
    return Factors(time, memory, held["machine"], str(held.get("date", "")))


def _factor(value: Any) -> float | None:
    """Return ``value`` if it is a number that can correct anything."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and LEAST <= value <= MOST else None
