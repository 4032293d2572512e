"""Which way to take, in one sentence with its reason, and the command to type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from launch.planning.candidates import Candidate, Offer, in_rounds, made
from launch.planning.machine import Machine
from launch.planning.outlook import Outlook, Prospect, View
from launch.planning.sizes import shown_bytes

ALIKE = 0.97  # of the fastest's speed: then the simpler way is taken
SIMPLER = ("single", "ddp", "fsdp", "pipeline", "model_parallel", "data_parallel")
PORT = 29500  # torchrun's own


@dataclass(frozen=True)
class Advice:
    """The way to take, None where none fits; why: a sentence; command: what to type."""

    prospect: Prospect | None
    why: str
    command: str = ""


def advise(outlook: Outlook, typed: Sequence[str] = ()) -> Advice:
    """Return what to do. typed: files and overrides of the command line, to be typed again."""
    known = [each for each in outlook.prospects if not each.problem]
    usable = sorted((each for each in known if each.fits is not False), key=_simplicity)
    if not usable:
        return Advice(None, nothing_fits(outlook))
    timed = [each for each in usable if each.step_s]
    best = usable[0]
    if timed:
        fastest = min(each.step_s or 0.0 for each in timed)
        best = next(each for each in timed if ALIKE * (each.step_s or 0.0) <= fastest)
    return Advice(best, _why(best, known), command(best.candidate, outlook.machine, typed))


def nothing_fits(outlook: Outlook) -> str:
    """Return how far each way is from fitting."""
    memory = outlook.machine.memory_bytes or 0
    needs = [
        f"{each.candidate.name} {shown_bytes(max(each.bytes))}"
        for each in outlook.prospects
        if each.bytes
    ]
    return (
        f"no way fits devices of {shown_bytes(memory)} at a global batch of {outlook.batch}: "
        f"{', '.join(needs) or 'none is possible'} a device"
    )


def command(candidate: Candidate, machine: Machine, typed: Sequence[str] = ()) -> str:
    """Return what to type for ``candidate``; over several nodes, on each of them."""
    words = " ".join(["-m launch.train", *typed, *candidate.words])
    if candidate.processes == 1:
        return f"python {words}"
    each = min(candidate.processes, machine.devices_per_node)
    nodes = candidate.processes // each
    if nodes == 1:
        return f"torchrun --nproc_per_node={each} {words}"
    return (
        f"torchrun --nnodes={nodes} --nproc_per_node={each} --rdzv_backend=c10d "
        f"--rdzv_endpoint=HOST:{PORT} {words}"
    )


def _simplicity(each: Prospect) -> int:
    kind = each.candidate.kind
    return SIMPLER.index(kind) if kind in SIMPLER else len(SIMPLER)


def _why(best: Prospect, known: Sequence[Prospect]) -> str:
    candidate = best.candidate
    refused = [
        f"{each.candidate.name} would need {shown_bytes(max(each.bytes))}"
        for each in known
        if each.fits is False and each.candidate.kind in ("single", "ddp")
    ]
    if candidate.devices == 1 and best.step_s:
        said = f"{candidate.name}: {1e3 * best.step_s:.3g} ms a step on one device"
        others = [each for each in known if each is not best and each.speed_up]
        if others:
            second = max(others, key=lambda each: each.speed_up or 0.0)
            said += (
                f"; the fastest on several, {second.candidate.name}, would be "
                f"{second.speed_up:.2f}x, as {_lost(second)}"
            )
    elif best.speed_up:
        said = f"{candidate.name}: {best.speed_up:.2f}x on {candidate.devices} devices"
    else:
        said = f"{candidate.name}: the simplest way that fits"
    if refused:
        return f"{said}, of those that fit the fastest; {' and '.join(refused)} a device"
    return said + _leaner(best, known)


def _lost(each: Prospect) -> str:
    """Return where the time of several devices goes."""
    if each.bubble > each.communication:
        return f"its devices wait for each other {100 * each.bubble:.0f} % of a step"
    return f"{100 * each.communication:.0f} % of its step is communication"


def _leaner(best: Prospect, known: Sequence[Prospect]) -> str:
    """Return which other way needs much less memory, and what it costs."""
    if not best.bytes:
        return ""
    others = [each for each in known if each.bytes and each.speed_up and each.step_s]
    least = min(others, key=lambda each: max(each.bytes), default=best)
    less = 1 - max(least.bytes) / max(best.bytes)
    if less < 0.1:
        return ""
    return (
        f"; {least.candidate.name} needs {100 * less:.0f} % less memory per device and is "
        f"{least.speed_up:.2f}x"
    )


def remedies(view: View) -> list[Prospect]:
    """Return ways to need less, with what they would need: rounds, recomputing, more devices."""
    config, devices = view.subject.config, view.machine.devices
    own = view.subject
    offer = Offer(config, devices, view.machine.is_cpu, own.uncut, own.undivided)
    kind = "ddp" if devices > 1 else "single"
    found: list[Prospect] = []
    for each in _rounds(offer, kind, devices):
        found = [view.weighed(each)]
        if found[0].fits:
            break
    ways = []
    if devices > 1:
        ways.append(made(offer, "fsdp, again", devices, "fsdp", checkpoint_every=1))
        ways.append(
            made(offer, "pipeline, again", devices, "pipeline", stages=devices,
                 microbatches=_most(offer), checkpoint_every=2)
        )  # fmt: skip
    twice = replace(offer, devices=2 * devices)
    ways.append(made(twice, f"fsdp on {2 * devices} devices", 2 * devices, "fsdp"))
    ways.append(
        made(twice, f"pipeline on {2 * devices} devices", 2 * devices, "pipeline",
             stages=2 * devices, microbatches=_most(offer))
    )  # fmt: skip
    found += [view.weighed(each) for each in ways if not each.problem]
    return [each for each in found if each.bytes]


def _rounds(offer: Offer, kind: str, devices: int) -> Iterator[Candidate]:
    """Yield ``kind`` in ever more rounds, up to one sample a round."""
    rounds = 2 * offer.config.train.accumulate
    while offer.config.train.global_batch_size >= devices * rounds:
        yield in_rounds(offer, kind, devices, rounds)
        rounds *= 2


def _most(offer: Offer) -> int:
    return max(1, min(16, offer.config.train.global_batch_size // offer.config.train.accumulate))
