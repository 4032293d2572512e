"""The rows of a comparison: every way that the devices allow, with what is foreseen of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from launch.comparison.turns import Foreseen, Found, Row
from launch.comparison.wanted import Wanted
from launch.config import ConfigError
from launch.planning.machine import Machine
from launch.planning.outlook import Prospect, foresee
from launch.planning.sizes import shown_bytes

ALL_CORES = "single, all cores"


def rows(wanted: Wanted) -> list[Found]:
    """Return the rows, nothing run yet; what cannot be run says why. Raises ``UsageError``."""
    machine = wanted.machine
    outlook = foresee(wanted.config, machine, every=wanted.every, corrected=False)
    found = [_found(each, wanted, machine) for each in outlook.prospects]
    found[1:1] = [Found(row) for row in _all_cores(found[0].row, wanted)]
    if wanted.scales_batch:
        found += [Found(row) for row in _scaled(found)]
    found += [Found(row) for row in _beside(wanted)]
    return _only(found, wanted.only)


def _found(prospect: Prospect, wanted: Wanted, machine: Machine) -> Found:
    way, problem = prospect.candidate, prospect.problem
    if prospect.fits is False and machine.memory_bytes:
        needed, there = shown_bytes(max(prospect.bytes)), shown_bytes(machine.memory_bytes)
        problem = f"does not fit: it should need {needed} of {there} a device"
    row = Row(
        way.name,
        way.words,
        way.devices,
        way.processes,
        wanted.config.train.global_batch_size,
        is_reference=way.name == "single",
    )
    foreseen = Foreseen(prospect.step_s, prospect.bytes, prospect.bubble, problem)
    return Found(row, foreseen=foreseen, problem=problem)


def _all_cores(single: Row, wanted: Wanted) -> Iterator[Row]:
    """Yield what threads give: the reference, on the cores of all devices."""
    machine = wanted.machine
    if machine.is_cpu and machine.devices > 1:
        yield replace(single, name=ALL_CORES, devices=machine.devices, is_reference=False)


def _scaled(found: list[Found]) -> Iterator[Row]:
    """Yield the rows with several replicas once more, each with a batch as that of one."""
    for row in [each.row for each in found if not each.problem]:
        if row.replicas > 1:
            yield replace(row, batch=row.batch * row.replicas, is_scaled=True)


def _beside(wanted: Wanted) -> Iterator[Row]:
    if wanted.beside is not None:
        batch = wanted.config.train.global_batch_size
        words = shlex.split(wanted.beside)
        script = next((word for word in words if word.endswith((".py", ".sh"))), words[0])
        yield Row(Path(script).name, (), wanted.machine.devices, 1, batch, is_beside=True)


def _only(found: list[Found], beginnings: tuple[str, ...]) -> list[Found]:
    """Return the rows whose names begin so, and the reference, which all are compared with."""
    names = [each.row.name for each in found]
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in names):
            raise ConfigError(
                f"--rows: no row's name begins with {beginning!r}; they are: {', '.join(names)}"
            )
    return [
        each
        for each in found
        if not beginnings
        or each.row.is_reference
        or each.row.is_beside
        or each.row.name.startswith(beginnings)
    ]
