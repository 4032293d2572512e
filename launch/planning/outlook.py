"""Every way side by side, before any is tried: time, memory, and what speaks against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from launch.config import Config
from launch.planning.candidates import Candidate, Family, Offer, candidates
from launch.planning.corrections import Corrections, Factors, place_of, read_corrections
from launch.planning.costs import find_costs
from launch.planning.estimate import Costs, Estimate, estimate
from launch.planning.machine import Machine
from launch.planning.room import UnpredictableError, fits, largest_batch, need, with_split
from launch.planning.subject import Subject
from parallel import UsageError
from parallel.pipeline.plan import Plan


@dataclass(frozen=True)
class Prospect:
    """What to expect of one way; None and () where that is not known.

    bytes: of each device. speed_up: over one device; efficiency: of it, per device. bubble,
    communication: shares of a step. largest_batch: the largest global batch that fits, 0 if none
    does. plan: where the model is cut. problem: why it cannot be, in words.
    """

    candidate: Candidate
    step_s: float | None = None
    bytes: tuple[int, ...] = ()
    bubble: float = 0.0
    communication: float = 0.0
    speed_up: float | None = None
    efficiency: float | None = None
    fits: bool | None = None
    largest_batch: int | None = None
    plan: Plan | None = None
    problem: str = ""


@dataclass(frozen=True)
class Outlook:
    """All of them; view: what they are seen by; notes: how these numbers were had."""

    view: View
    prospects: tuple[Prospect, ...]
    notes: tuple[str, ...] = ()

    @property
    def machine(self) -> Machine:
        """What it was planned for."""
        return self.view.machine

    @property
    def batch(self) -> int:
        """Samples of a global batch."""
        return self.view.batch


def foresee(
    config: Config,
    machine: Machine,
    *,
    every: bool = False,
    subject: Subject | None = None,
    corrected: bool = True,
    batches: bool = True,
) -> Outlook:
    """Return what to expect of each way to train ``config`` on ``machine``, in seconds.

    every: also of further ways. subject: if it is there already. corrected: by what a comparison
    found. batches: also the largest that fit. On this machine's own devices processes of its own
    are started, and ended.
    """
    own = subject or Subject.of(config)
    offer = Offer(config, machine.devices, machine.is_cpu, own.uncut, own.undivided)
    families = candidates(offer, every)
    ways = [each for family in families for each in family]
    corrections = Corrections()
    if corrected:
        corrections = read_corrections(place_of(config), machine)
    notes, costs = [], None
    try:
        found = find_costs(own, machine, ways)
        costs, notes = found.costs, list(found.notes)
    except UnpredictableError as error:
        notes.append(str(error))
    view = View(own, machine, costs, corrections.factors, batches)
    prospects = view.compared([view.best(family) for family in families])
    told = (corrections.note,) if corrections.note else ()
    return Outlook(view, prospects, (*notes, *told))


@dataclass(frozen=True)
class View:
    """All that is known of a task and a machine."""

    subject: Subject
    machine: Machine
    costs: Costs | None
    factors: Factors
    batches: bool = True  # whether the largest that fits is asked for

    @property
    def batch(self) -> int:
        """Samples of a global batch."""
        return self.subject.config.train.global_batch_size

    def best(self, family: Family) -> Prospect:
        """Return the fastest that fits; where none does, the one that needs least."""
        timed = sorted(map(self._timed, family), key=lambda each: each.step_s or 0.0)
        usable = [each for each in timed if not each.problem] or timed[:1]
        seen: list[Prospect] = []
        for each in usable:
            seen.append(self.weighed(each))
            if seen[-1].fits is not False:
                break
        fitting = [each for each in seen if each.fits is not False]
        return self._filled(min(fitting or seen, key=lambda each: max(each.bytes, default=0)))

    def compared(self, prospects: Sequence[Prospect]) -> tuple[Prospect, ...]:
        """Return them with their speed-ups over one device."""
        first = next((p.step_s for p in prospects if p.candidate.devices == 1), None)
        return tuple(_compared(each, first) for each in prospects)

    def _timed(self, candidate: Candidate) -> Prospect:
        if candidate.problem:
            return Prospect(candidate, problem=candidate.problem)
        if self.costs is None:
            return Prospect(candidate)
        try:
            found = estimate(candidate, self.batch, self.costs)
        except UsageError as error:  # fewer layers than stages, no cut that fits
            return Prospect(candidate, problem=str(error))
        return self._with(candidate, found)

    def _with(self, candidate: Candidate, found: Estimate) -> Prospect:
        if found.plan is not None:
            candidate = with_split(candidate, found.plan.cuts)
        return Prospect(
            candidate,
            found.step_s * self.factors.time,
            bubble=found.bubble,
            communication=found.communication,
            plan=found.plan,
        )

    def weighed(self, candidate: Candidate | Prospect) -> Prospect:
        """Return a way with its memory."""
        each = Prospect(candidate) if isinstance(candidate, Candidate) else candidate
        if each.problem:
            return each
        try:
            bytes = tuple(
                round(b * self.factors.memory) for b in need(self.subject, each.candidate)
            )
        except UnpredictableError as error:
            return replace(each, problem="" if each.step_s else str(error))
        return replace(each, bytes=bytes, fits=fits(bytes, self.machine.memory_bytes))

    def _filled(self, each: Prospect) -> Prospect:
        """Return ``each`` with its largest batch, where something limits that."""
        limit = self.machine.memory_bytes
        if limit is None or not each.bytes or not self.batches:
            return each
        most = largest_batch(self.subject, each.candidate, round(limit / self.factors.memory))
        return replace(each, largest_batch=most)


def _compared(each: Prospect, first_s: float | None) -> Prospect:
    if each.step_s is None or not first_s:
        return each
    speed_up = first_s / each.step_s
    return replace(each, speed_up=speed_up, efficiency=speed_up / each.candidate.devices)
