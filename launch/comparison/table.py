"""Turns made into a table: medians, spreads, and what cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb, isfinite, log
from statistics import median, quantiles

from launch.comparison.turns import Found, Turn

CLOSE = 0.01  # of a step time: less is no difference
SURE = 0.05  # the chance that rows alike would have come out so, at most
AGREE = 1e-3  # of losses: float32, where sums in another order part a little
GIB = 2**30


@dataclass(frozen=True)
class Line:
    """A row of the table; None where there is nothing to say.

    turns: those whose times count. step_s: the median over them; low_s, high_s: their quartiles.
    speed_up: over the reference, the median of ratios within a round; of scaled rows in samples/s.
    efficiency: speed_up per device. data, communication, bubble: shares of a step.
    peak_gib: of the process that took most. loss: of the last turn that all rows took.
    note: what else there is to know, in words. alike: rows whose step time cannot be told from
    this one's.
    """

    name: str
    devices: int
    batch: int
    strategy: str = ""
    is_scaled: bool = False
    is_reference: bool = False
    turns: int = 0
    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    samples_per_s: float | None = None
    speed_up: float | None = None
    efficiency: float | None = None
    data: float | None = None
    communication: float | None = None
    bubble: float | None = None
    peak_gib: float | None = None
    foreseen_step_s: float | None = None
    foreseen_gib: float | None = None
    loss: float | None = None
    note: str = ""
    alike: tuple[str, ...] = ()

    @property
    def is_measured(self) -> bool:
        """Whether it was run."""
        return self.step_s is not None

    @property
    def label(self) -> str:
        """The name, which a row of another batch may share, told apart from that one's."""
        return f"{self.name}, batch {self.batch:,}" if self.is_scaled else self.name


def lines(found: Sequence[Found]) -> list[Line]:
    """Return the table, rows in the order in which they were asked for."""
    reference = next((each for each in found if each.row.is_reference and each.timed), None)
    common = _common(found)
    made = [_line(each, reference, common) for each in found]
    for at, each in enumerate(found):
        others = [o for o in found if o is not each and o.row.is_scaled == each.row.is_scaled]
        alike = tuple(o.row.name for o in others if cannot_tell(each.timed, o.timed))
        made[at] = replace(made[at], alike=alike)
    return made


def cannot_tell(one: Sequence[Turn], other: Sequence[Turn]) -> bool:
    """Whether two rows' turns of the same rounds do not show which is faster.

    They do if the median ratio is off 1 by more than ``CLOSE``, and one was faster so often that
    chance (a two-sided sign test, without ties) would do it in ``SURE`` of cases at most; with
    fewer than six rounds, where that cannot be, if it always was, and by more than rounds differ.
    """
    ratios = [log(ratio) for ratio in _ratios(one, other)]  # logarithms: the same either way round
    if not ratios:
        return False
    apart = [ratio for ratio in ratios if ratio]
    faster = sum(ratio < 0 for ratio in apart)
    fewer = min(faster, len(apart) - faster)
    chance = 2 * sum(comb(len(apart), k) for k in range(fewer + 1)) / 2 ** len(apart)
    is_steady = not fewer and max(ratios) - min(ratios) < abs(median(ratios))
    is_sure = chance <= SURE if len(apart) >= 6 else is_steady
    return not is_sure or abs(median(ratios)) < CLOSE


def _ratios(one: Sequence[Turn], other: Sequence[Turn]) -> list[float]:
    """Return one's step times over the other's, of the rounds that both have."""
    theirs = {turn.round: turn.step_s for turn in other}
    return [turn.step_s / theirs[turn.round] for turn in one if turn.round in theirs]


def _common(found: Sequence[Found]) -> tuple[int, int] | None:
    """Return the last steps that all rows of the configuration's own batch took."""
    taken = [
        {(turn.first, turn.last) for turn in each.turns}
        for each in found
        if each.timed and not each.row.is_scaled and not each.row.is_beside
    ]
    shared = set.intersection(*taken) if taken else set()
    return max(shared) if shared else None


def _line(each: Found, reference: Found | None, common: tuple[int, int] | None) -> Line:
    row, foreseen = each.row, each.foreseen
    line = Line(
        row.name,
        row.devices,
        row.batch,
        row.strategy,
        row.is_scaled,
        row.is_reference,
        foreseen_step_s=foreseen.step_s,
        foreseen_gib=max(foreseen.bytes) / GIB if foreseen.bytes else None,
        peak_gib=max(each.peak_bytes) / GIB if each.peak_bytes else None,
        note=each.problem,
    )
    if not each.timed:
        return line
    loss, note = _loss(each, reference, common)
    waited = _share(each, "communication")
    bubble = min(foreseen.bubble, waited) if waited is not None else None
    line = replace(
        line,
        data=_share(each, "data", "transfer"),
        communication=waited - bubble if waited is not None and bubble is not None else None,
        bubble=bubble,
        loss=loss,
        note="; ".join(text for text in (note, each.problem) if text),
    )
    return _timed(line, each, reference)


def _timed(line: Line, each: Found, reference: Found | None) -> Line:
    """Return the line with what follows from step times."""
    times = [turn.step_s for turn in each.timed]
    step_s = median(times)
    low, _, high = quantiles(times, method="inclusive") if len(times) > 1 else (step_s,) * 3
    ratios = _ratios(reference.timed, each.timed) if reference is not None else []
    more = line.batch / reference.row.batch if reference is not None else 1
    speed_up = median(ratios) * more if ratios else None
    return replace(
        line,
        turns=len(times),
        step_s=step_s,
        low_s=low,
        high_s=high,
        samples_per_s=line.batch / step_s,
        speed_up=speed_up,
        efficiency=speed_up / line.devices if speed_up is not None else None,
    )


def _share(each: Found, *phases: str) -> float | None:
    """Return the median share of a step that the phases take; None where none was timed."""
    if not any(turn.time_s for turn in each.timed):
        return None
    return median(
        sum(turn.time_s.get(name, 0.0) for name in phases) / turn.step_s for turn in each.timed
    )


def _loss(
    each: Found, reference: Found | None, common: tuple[int, int] | None
) -> tuple[float | None, str]:
    """Return the loss of the common steps, and where it is not the reference's, why."""
    own = {(turn.first, turn.last): turn.loss for turn in each.turns}
    loss = own.get(common) if common is not None else None
    if reference is None or reference is each or each.row.is_scaled or loss is None:
        return loss, ""
    theirs = {(turn.first, turn.last): turn.loss for turn in reference.turns}
    shared = sorted(own.keys() & theirs.keys())
    far = [steps for steps in shared if not _agree(own[steps], theirs[steps])]
    if not far:
        return loss, ""
    (first, last), name = far[0], reference.row.name
    where = f"loss {_apart(own[far[0]], theirs[far[0]], name)} in steps {first} to {last}"
    # A rank tells of its own layers alone: where the model is cut, the reference knows the rest.
    traits = list(dict.fromkeys([*reference.traits, *each.traits]))
    if traits:
        return loss, f"{where}: with {' and '.join(traits)} it depends on how a batch is divided"
    if far[0] != shared[0]:
        return loss, f"{where}, where rounding has grown; alike before"
    return loss, f"{where}, and nothing in the model explains it: python -m launch.check"


def _agree(own: float, theirs: float) -> bool:
    """Whether two losses are the same but for rounding; losses that both overflowed are."""
    if not isfinite(own) or not isfinite(theirs):
        return isfinite(own) == isfinite(theirs)
    return abs(own - theirs) <= AGREE * max(abs(theirs), 1e-12)


def _apart(own: float, theirs: float, name: str) -> str:
    """Return by how much two losses differ, in words that go on with where."""
    if not isfinite(own) or not isfinite(theirs):
        return f"is {own:.3g} where {name}'s is {theirs:.3g}"
    return f"{100 * abs(own - theirs) / max(abs(theirs), 1e-12):.2g} % from {name}'s"
