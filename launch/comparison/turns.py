"""What was run and what it said: rows, their turns, and how these lie on the disk as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One way to train: what is added to the command, and what it may use.

    name: "ddp", "pipeline m=4", "2x2 pipeline". words: overrides, such as strategy.name=ddp.
    devices: GPUs, or on a CPU shares of the cores; processes: 1 where one process uses all.
    batch: samples of a global batch. is_scaled: whether that is larger than the configuration's,
        to see weak scaling. is_reference: what speed-ups are over. is_beside: whether it is a
        program of the user's own.
    """

    name: str
    words: tuple[str, ...]
    devices: int
    processes: int
    batch: int
    is_scaled: bool = False
    is_reference: bool = False
    is_beside: bool = False

    @property
    def replicas(self) -> int:
        """How many whole models there are."""
        stages = [word.partition("=")[2] for word in self.words if ".stages=" in word]
        return self.processes // int(stages[-1]) if stages else self.processes

    @property
    def strategy(self) -> str:
        """The strategy's name as the words give it; "" where they give none."""
        named = [word.partition("=")[2] for word in self.words if word.startswith("strategy.name=")]
        return named[-1] if named else ""


@dataclass(frozen=True)
class Turn:
    """Some steps in a row; all rows take the same ones in the same round.

    round: from 1 on; 0 is the warm-up, whose loss counts but whose times do not. first, last:
    steps, the first of a run is 1. step_s: mean seconds a step. loss: mean over the turn. time_s:
    mean seconds a step by phase (data, transfer, forward, backward, communication, optimizer) on
    rank 0. load: of the machine before the turn, in busy cores.
    """

    round: int
    first: int
    last: int
    step_s: float
    loss: float
    time_s: Mapping[str, float] = field(default_factory=dict)
    load: float = 0.0


@dataclass(frozen=True)
class Foreseen:
    """What the planner expects of a row: seconds a step, bytes of each device, idle share.

    problem: why it cannot be run at all; "" if it can.
    """

    step_s: float | None = None
    bytes: tuple[int, ...] = ()
    bubble: float = 0.0
    problem: str = ""


@dataclass
class Found:
    """A row with all that is known of it.

    peak_bytes: what each process took in training beyond what it had before the model; of a GPU,
        allocated.
    traits: what makes losses differ by right: "batch normalisation", "dropout".
    problem: why it has no (more) turns, in words; "" if it has them all.
    """

    row: Row
    turns: list[Turn] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    traits: list[str] = field(default_factory=list)
    foreseen: Foreseen = field(default_factory=Foreseen)
    problem: str = ""

    @property
    def timed(self) -> list[Turn]:
        """The turns whose times count."""
        return [turn for turn in self.turns if turn.round]


def to_json(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Return plain containers; a loss that is no finite number is None, which JSON can hold."""
    return [{**asdict(each), "turns": [_plain(turn) for turn in each.turns]} for each in found]


def from_json(rows: Sequence[Mapping[str, Any]]) -> list[Found]:
    """Return what ``to_json`` was given; a loss of None is NaN.

    Raises ``KeyError`` or ``TypeError`` for anything else.
    """
    return [
        Found(
            Row(**{**each["row"], "words": tuple(each["row"]["words"])}),
            [_turn(turn) for turn in each["turns"]],
            list(each["peak_bytes"]),
            list(each["traits"]),
            Foreseen(**{**each["foreseen"], "bytes": tuple(each["foreseen"]["bytes"])}),
            each["problem"],
        )
        for each in rows
    ]


def _plain(turn: Turn) -> dict[str, Any]:
    return {**asdict(turn), "loss": turn.loss if math.isfinite(turn.loss) else None}


def _turn(plain: Mapping[str, Any]) -> Turn:
    return Turn(**{**plain, "loss": math.nan if plain["loss"] is None else plain["loss"]})
