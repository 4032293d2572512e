"""The order in which a stage computes its microbatches: a value, drawn and timed before it is run.

gpipe (Huang et al. 2019, arXiv:1811.06965) holds all microbatches, then works them off:

    stage 0  F0 F1 F2 .. .. .. B0 B0 B1 B1 B2 B2
    stage 1  .. F0 F1 F2 B0 B0 B1 B1 B2 B2 .. ..

1f1b (PipeDream-flush, Narayanan et al. 2021, arXiv:2104.04473) takes as long, and holds no more
microbatches than there are stages from here on:

    stage 0  F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 .. B3 B3
    stage 1  .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .. ..

There each message is waited for: F2 is sent when stage 1 is about to want it. With microbatches
``ahead`` all stages but the last hold so many more, and messages travel while stages compute (the
eager 1f1b of Zhuang et al. 2023, arXiv:2211.05322, which holds up to twice as many); with one:

    stage 0  F0 F1 F2 .. B0 B0 F3 B1 B1 .. B2 B2 .. B3 B3
    stage 1  .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .. ..

Backwards run in the order of the forwards in both, so gradients are added as one process that
accumulates adds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parallel.errors import UsageError

KINDS = ("1f1b", "gpipe")


class Op(NamedTuple):
    """One microbatch's forward (``F``) or backward (``B``) on one stage."""

    kind: str
    microbatch: int


class Span(NamedTuple):
    """When a stage computes an op, in seconds from the step's start."""

    op: Op
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Forecast:
    """What a schedule should take, its optimizer step aside.

    bubble: idle share of all stages' time. speed_up: over one device that does all the work.
    """

    step_s: float
    bubble: float
    speed_up: float


def order(kind: str, stages: int, stage: int, microbatches: int, ahead: int = 0) -> list[Op]:
    """Return what ``stage`` computes, in order; for any number of microbatches."""
    first = in_flight(kind, stages, stage, microbatches, ahead) - (kind != "gpipe")
    ops = [Op("F", each) for each in range(first)]
    for each in range(first, microbatches):
        ops += [Op("F", each), Op("B", each - first)]
    return ops + [Op("B", each) for each in range(microbatches - first, microbatches)]


def in_flight(kind: str, stages: int, stage: int, microbatches: int, ahead: int = 0) -> int:
    """Return how many microbatches ``stage`` holds for their backward at most."""
    _check(kind, microbatches)
    if kind == "gpipe":
        return microbatches
    is_last = stage == stages - 1
    return min(stages - stage + (0 if is_last else ahead), microbatches)


def timeline(
    times: Sequence[tuple[float, float]],
    kind: str,
    microbatches: int,
    message_s: Sequence[float] | None = None,
    ahead: int = 0,
) -> list[list[Span]]:
    """Return when each stage computes what.

    times: of each stage, seconds of one microbatch's forward and backward.
    message_s: of each cut, seconds on the way; stages compute meanwhile, and each direction of a
        cut carries one message at a time.
    """
    stages = len(times)
    delays = list(message_s) if message_s is not None else [0.0] * (stages - 1)
    waiting = [order(kind, stages, stage, microbatches, ahead) for stage in range(stages)]
    arrived: list[dict[Op, float]] = [{} for _ in times]  # when an op's input is there
    arrived[0] = {Op("F", each): 0.0 for each in range(microbatches)}
    spans: list[list[Span]] = [[] for _ in times]
    while any(waiting):
        for stage, ops in enumerate(waiting):
            while ops and ops[0] in arrived[stage]:
                op = ops.pop(0)
                start = max(arrived[stage][op], spans[stage][-1].end_s if spans[stage] else 0.0)
                end = start + times[stage][op.kind == "B"]
                spans[stage].append(Span(op, start, end))
                _send(op, end, stage, arrived, delays)
    return spans


def simulate(
    times: Sequence[tuple[float, float]],
    kind: str,
    microbatches: int,
    message_s: Sequence[float] | None = None,
    ahead: int = 0,
) -> Forecast:
    """Return what a step should take; arguments as of ``timeline``."""
    spans = timeline(times, kind, microbatches, message_s, ahead)
    step_s = max(span.end_s for stage in spans for span in stage)
    work_s = microbatches * sum(forward + backward for forward, backward in times)
    if not step_s:
        return Forecast(0.0, 0.0, 1.0)
    return Forecast(step_s, 1 - work_s / (len(times) * step_s), work_s / step_s)


def draw(kind: str, stages: int, microbatches: int, ahead: int = 0) -> str:
    """Return a picture of the schedule: a line a stage, a column a tick, a backward takes two."""
    spans = timeline([(1, 2)] * stages, kind, microbatches, ahead=ahead)
    ticks = round(max(span.end_s for stage in spans for span in stage))
    width = len(str(microbatches - 1)) + 1
    lines = []
    for stage, found in enumerate(spans):
        cells = ["." * width] * ticks
        for (name, microbatch), start, end in found:
            for tick in range(round(start), round(end)):
                cells[tick] = f"{name}{microbatch:<{width - 1}}"
        lines.append(f"stage {stage:<{len(str(stages - 1))}}  {' '.join(cells)}")
    return "\n".join(lines)


def _send(
    op: Op, end: float, stage: int, arrived: list[dict[Op, float]], delays: Sequence[float]
) -> None:
    """Note when what ``op`` gives reaches the stage that waits for it."""
    if op.kind == "F" and stage == len(arrived) - 1:
        arrived[stage][Op("B", op.microbatch)] = end
        return
    if op.kind == "B" and stage == 0:
        return
    to, delay = (stage + 1, delays[stage]) if op.kind == "F" else (stage - 1, delays[stage - 1])
    before = arrived[to].get(Op(op.kind, op.microbatch - 1), 0.0)  # the link is busy until then
    arrived[to][op] = max(end, before) + delay


def _check(kind: str, microbatches: int) -> None:
    if kind not in KINDS:
        raise UsageError(f"strategy.schedule={kind} is not one of {', '.join(KINDS)}")
    if microbatches < 1:
        raise UsageError(f"strategy.microbatches={microbatches}: at least 1 is wanted")
