"""An outlook as a person reads it, and as a program does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from launch.planning.advice import Advice
from launch.planning.outlook import Outlook, Prospect
from launch.planning.room import SAFE
from launch.planning.sizes import shown_bytes

NAMES = (
    "way", "memory/device", "fits", "largest batch", "step", "samples/s", "speed-up",
    "efficiency", "bubble", "communication",
)  # fmt: skip


def text(outlook: Outlook, advice: Advice, others: Sequence[Prospect]) -> str:
    """Return the whole report. others: what would need less, where nothing fits."""
    machine = outlook.machine
    lines = [f"{machine.described}; global batch {outlook.batch}", *outlook.notes, ""]
    shown = [each for each in outlook.prospects if not each.problem]
    lines += table([row(each, outlook.batch) for each in shown], machine.memory_bytes is not None)
    lines += [
        f"{each.candidate.name}: {each.problem}" for each in outlook.prospects if each.problem
    ]
    if machine.memory_bytes is not None:
        lines.append(
            f"fits: needs at most {100 * SAFE:.0f} % of {shown_bytes(machine.memory_bytes)}"
        )
    if machine.is_cpu:
        lines.append("single has one device's share of the cores, as each process of the others")
    cut = advice.prospect if advice.prospect and advice.prospect.plan else _first_cut(shown)
    if cut is not None and cut.plan is not None:
        lines += ["", f"the split of {cut.candidate.name}:"]
        lines += [f"  {line}" for line in cut.plan.lines()]
    lines += ["", f"advice: {advice.why}"]
    lines += [f"  {advice.command}"] if advice.command else _would_do(outlook, others)
    return "\n".join(lines) + "\n"


def row(each: Prospect, batch: int) -> list[str]:
    """Return the cells of a way."""
    step_s = each.step_s
    return [
        each.candidate.name,
        shown_bytes(max(each.bytes)) if each.bytes else "?",
        {True: "yes", False: "no", None: ""}[each.fits],
        "" if each.largest_batch is None else str(each.largest_batch),
        f"{1e3 * step_s:.3g} ms" if step_s and step_s < 1 else f"{step_s:.3g} s" if step_s else "?",
        _rate(batch / step_s) if step_s else "?",
        f"{each.speed_up:.2f}x" if each.speed_up else "?",
        _percent(each.efficiency),
        _percent(each.bubble),
        _percent(each.communication),
    ]


def table(rows: Sequence[Sequence[str]], has_limit: bool) -> list[str]:
    """Return lines with the cells below their names; without a limit nothing is said of it."""
    columns = [at for at in range(len(NAMES)) if has_limit or at not in (2, 3)]
    cells = [[each[at] for at in columns] for each in (NAMES, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def as_json(outlook: Outlook, advice: Advice, others: Sequence[Prospect]) -> str:
    """Return the same for programs."""
    machine = outlook.machine
    best = advice.prospect.candidate.name if advice.prospect else None
    return _dumped(
        {
            "machine": machine.described,
            "devices": machine.devices,
            "device_memory_bytes": machine.memory_bytes,
            "global_batch_size": outlook.batch,
            "notes": list(outlook.notes),
            "ways": [_plain(each, outlook.batch) for each in outlook.prospects],
            "advice": {"way": best, "why": advice.why, "command": advice.command},
            "would_need_less": [_plain(each, outlook.batch) for each in others],
        }
    )


def _dumped(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def _plain(each: Prospect, batch: int) -> dict[str, Any]:
    return {
        "name": each.candidate.name,
        "words": list(each.candidate.words),
        "devices": each.candidate.devices,
        "processes": each.candidate.processes,
        "bytes": list(each.bytes),
        "fits": each.fits,
        "largest_batch": each.largest_batch,
        "step_s": each.step_s,
        "samples_per_s": batch / each.step_s if each.step_s else None,
        "speed_up": each.speed_up,
        "efficiency": each.efficiency,
        "bubble": each.bubble,
        "communication": each.communication,
        "cuts": list(each.plan.cuts) if each.plan else None,
        "shares": list(each.plan.shares) if each.plan else None,
        "problem": each.problem,
    }


def _first_cut(shown: Sequence[Prospect]) -> Prospect | None:
    """Return the way that is cut over most devices at once."""
    cut = [each for each in shown if each.plan is not None]
    return max(cut, key=lambda each: each.candidate.stages * each.candidate.rounds, default=None)


def _would_do(outlook: Outlook, others: Sequence[Prospect]) -> list[str]:
    lines = [
        f"  smaller batches: {each.candidate.name} with train.global_batch_size="
        f"{each.largest_batch}"
        for each in outlook.prospects
        if each.largest_batch
    ]
    for each in others:
        verdict = "fits" if each.fits else "does not fit either"
        lines.append(
            f"  {each.candidate.name} needs {shown_bytes(max(each.bytes))} a device, and "
            f"{verdict}: {' '.join(each.candidate.words)}"
        )
    if not outlook.machine.is_cpu and outlook.machine.devices > 1:
        lines.append("  fsdp with its state in host memory: strategy.cpu_offload=true")
    return lines


def _rate(each: float) -> str:
    return f"{each:,.0f}" if each >= 100 else f"{each:.3g}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.0f} %"
