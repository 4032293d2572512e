"""One sentence: which way to train, by how much, and what that costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launch.comparison.figures import digits, duration, listed, one_line, percent
from launch.comparison.table import CLOSE, Line

SIMPLE = ("single", "data_parallel", "ddp", "fsdp", "model_parallel", "pipeline")  # simplest first
LEAN = 0.1  # of memory: a smaller difference is not worth a word
SAME = 0.05  # of memory: rows that near the least are equally lean
NEAR = 1.25  # of a step: more cores that give less are no other way
COST = 0.1  # of a step: a smaller part is no reason
MOST = 80  # characters of a reason


def advise(rows: Sequence[Line]) -> str:
    """Return the advice that follows from the table; rows of a scaled batch have no say."""
    own = [row for row in rows if not row.is_scaled]
    timed = sorted((row for row in own if row.is_measured), key=_step_s)
    if not timed:
        return "; ".join(["no row was measured", *_reasons(own)])
    best, *others = timed
    if not others:
        only = f"only {best.name} was measured, {_step(best)}: there is nothing to compare it with"
        return "; ".join([only, *_reasons(own)])
    best, others = _simplest(best, others)
    rivals = [row for row in others if row.name in best.alike]
    if rivals:
        parts = _undecided([best, *rivals])
    elif best.is_reference:
        parts = [_costs_of(best, others), *_leaner(best, others)]
    else:
        parts = [_lead(best, others[0]), *_leaner(best, others)]
        parts += _reasons(row for row in own if row.is_reference)
    if best.turns == 1:
        parts.append("from one round only")
    return "; ".join(parts)


def _simplest(best: Line, others: list[Line]) -> tuple[Line, list[Line]]:
    """Return the row to speak for, and rows of other strategies to compare it with.

    The reference speaks for rows that only give it more cores, where these change little.
    """
    for row in others:
        is_near = row.name in best.alike and _step_s(row) <= NEAR * _step_s(best)
        if row.is_reference and row.strategy == best.strategy and is_near:
            best = row
    return best, [row for row in others if row.strategy != best.strategy] or others


def _undecided(group: Sequence[Line]) -> list[str]:
    """Return the figures of rows that cannot be told apart, and which to take all the same."""
    steps = [_step_s(row) for row in group]
    is_close = max(steps) < (1 + CLOSE) * min(steps)
    said = "no difference to tell" if is_close else "too noisy to tell"
    chosen, why = _choice(group)
    gain = f": {digits(chosen.speed_up)}x" if chosen.speed_up is not None else ""
    return [f"{said}: {listed(map(_figures, group))}", f"{chosen.name} {why}{gain}"]


def _choice(group: Sequence[Line]) -> tuple[Line, str]:
    """Return the leanest row if it stands out, else the simplest, and why it is that one."""
    sizes = {row.name: row.peak_gib for row in group if row.peak_gib}
    if len(sizes) == len(group):
        by_size = sorted(group, key=lambda row: sizes[row.name])
        less = 1 - sizes[by_size[0].name] / sizes[by_size[1].name]
        if less >= LEAN:
            return by_size[0], f"needs {percent(less)} % less memory per device"
    return min(group, key=_effort), "is the simpler"


def _effort(row: Line) -> tuple[int, int]:
    """Return what sorts rows by how little they ask for."""
    at = SIMPLE.index(row.strategy) if row.strategy in SIMPLE else len(SIMPLE)
    return row.devices, at


def _lead(best: Line, second: Line) -> str:
    """Return by how much the fastest row leads: over the reference, or else over the second."""
    devices = "1 device" if best.devices == 1 else f"{best.devices} devices"
    if best.speed_up is not None:
        return f"{best.name}: {digits(best.speed_up)}x on {devices}"
    ahead = digits(_step_s(second) / _step_s(best))
    return f"{best.name}: {_step(best)} on {devices}, {ahead}x as fast as {second.name}"


def _costs_of(best: Line, others: Sequence[Line]) -> str:
    """Return why the reference wins: what a step of the next row that shows it spends besides."""
    said = f"{best.name}: a step takes {duration(_step_s(best))}"
    shown = next((row for row in others if _cost(row)), others[0])
    return f"{said}, with {shown.name} {duration(_step_s(shown))}{_cost(shown)}"


def _cost(row: Line) -> str:
    """Return the largest part of a step that is no work; "" where it is small or not known."""
    parts = [
        (row.communication or 0.0, "communication"),
        (row.bubble or 0.0, "idle in the bubble"),
        (row.data or 0.0, "waiting for data"),
    ]
    share, name = max(parts)
    return f", {duration(share * _step_s(row))} of it {name}" if share >= COST else ""


def _leaner(best: Line, others: Sequence[Line]) -> list[str]:
    """Return which row needs the least memory and what it gives for that, if it is much less."""
    sizes = {row.name: row.peak_gib for row in others if row.peak_gib}
    if not best.peak_gib or not sizes:
        return []
    least = min(sizes.values())
    if least > (1 - LEAN) * best.peak_gib:
        return [f"no other row needs {percent(LEAN)} % less memory per device"]
    lean = next(row for row in others if sizes.get(row.name, 2 * least) <= (1 + SAME) * least)
    less = percent(1 - sizes[lean.name] / best.peak_gib)
    at = f"is {digits(lean.speed_up)}x" if lean.speed_up is not None else f"takes {_step(lean)}"
    return [f"{lean.name} needs {less} % less memory per device and {at}"]


def _reasons(rows: Iterable[Line]) -> list[str]:
    """Return why rows were not measured, a clause each."""
    missing = [row for row in rows if not row.is_measured]
    return [f"{row.name}: {one_line(row.note, MOST) or 'not run'}" for row in missing]


def _figures(row: Line) -> str:
    """Return name, time and spread."""
    if row.low_s is None or row.high_s is None or row.turns < 2:
        return f"{row.name} {duration(_step_s(row))}"
    return f"{row.name} {duration(_step_s(row))} ({duration(row.low_s)} to {duration(row.high_s)})"


def _step(row: Line) -> str:
    return f"{duration(_step_s(row))} a step"


def _step_s(row: Line) -> float:
    """Return the step time of a row that was measured."""
    return row.step_s if row.step_s is not None else float("inf")
