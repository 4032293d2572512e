"""What strategy.name=auto means for a run whose devices' memory is known: decided once, by rank 0.

    one process                                  single, if it fits
    several, and ddp needs at most 80 %          ddp
    several, and it needs more                   fsdp or pipeline: the fastest that fits

It is decided by arithmetic alone, so that the same run decides alike wherever it is started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import IterableDataset

from launch.config import Config, build_task
from launch.data import seed_all
from launch.planning.candidates import Candidate, Offer, made
from launch.planning.crew import Crew, CrewError
from launch.planning.machine import Machine
from launch.planning.outlook import Prospect, foresee
from launch.planning.room import UnpredictableError, need
from launch.planning.sizes import shown_bytes
from launch.planning.subject import Subject
from launch.prepare import Datasets, Prepared, with_strategy
from parallel import UsageError, World

SHARE = 0.8  # of a device's memory: up to there ddp is left alone
TIMEOUT_S = 300.0
INSTEAD = ("fsdp", "pipeline")


@dataclass(frozen=True)
class Decision:
    """What rank 0 found. settings: of the strategy; empty: as it was. problem: in words."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Decided:
    """A run as it will be; remembers: what a checkpoint keeps of the decision."""

    prepared: Prepared
    remembers: Mapping[str, Any] = field(default_factory=dict)


def decide(
    prepared: Prepared, datasets: Datasets, world: World, before: Mapping[str, Any]
) -> Decided:
    """Return the run with the strategy that its memory allows. Collective.

    before: ``Engine.remembers`` of the run that this one goes on from. Raises ``UsageError`` on
    all ranks where nothing fits.
    """
    limit = _memory(prepared.config, world)
    is_auto = prepared.config.strategy.get("name") == "auto"
    if not is_auto or limit is None or isinstance(datasets["train"], IterableDataset):
        return Decided(prepared)
    terms = {"processes": world.size, "memory_bytes": limit}
    found: Decision | None = None
    if world.is_main:
        world.notes.announce("plans which strategy fits")
        found = _again(before.get("auto"), terms) or _decision(prepared, datasets, world, limit)
        world.notes.announce("")
    found = world.share(found) or Decision()
    if found.problem:
        raise UsageError(found.problem)
    if found.note:
        prepared = replace(prepared, notes=(*prepared.notes, found.note))
    if not found.settings:
        return Decided(prepared)
    kept = {"auto": {**terms, "settings": dict(found.settings)}}
    return Decided(with_strategy(prepared, found.settings, world), kept)


def _memory(config: Config, world: World) -> int | None:
    """Return the bytes of a device; None where nothing is known."""
    if config.launch.device_memory_gib is not None:
        return int(config.launch.device_memory_gib * 2**30)
    if world.device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(world.device).total_memory)


def _again(kept: Any, terms: Mapping[str, Any]) -> Decision | None:
    """Return the decision that a checkpoint keeps, if it was for the same devices."""
    if not isinstance(kept, Mapping) or any(kept.get(key) != terms[key] for key in terms):
        return None
    settings = kept["settings"]
    return Decision(settings, f"auto: {settings['name']}, as the run was before")


def _decision(prepared: Prepared, datasets: Datasets, world: World, limit: int) -> Decision:
    config, name = prepared.config, "single" if world.size == 1 else "ddp"
    try:
        subject = Subject.of(config, prepared.task, datasets)
        offer = Offer(config, world.size, world.device.type == "cpu")
        plain = made(offer, name, world.size, name)
        held = max(need(subject, plain))
    except UnpredictableError as error:
        return Decision(note=f"auto: {name}, whether it fits or not: {error}")
    if held <= SHARE * limit or (world.size == 1 and held <= limit):
        return Decision()
    why = f"{name} would need {shown_bytes(held)} of {shown_bytes(limit)} a device"
    if world.size == 1:
        return Decision(problem=_alone(why))
    try:
        prospects = _planned(config, _machine(world, limit))
    except CrewError as error:
        return Decision(note=f"auto: ddp, although {why}, as planning failed: {error}")
    ways = [each for each in prospects if each.candidate.processes == world.size]
    return _instead(ways, why, may_stay=held <= limit)


def _alone(why: str) -> str:
    return (
        f"{why}; use more processes, such as torchrun --nproc_per_node=2, so that auto takes what "
        "fits, or a smaller train.global_batch_size, or train.accumulate=2; "
        "python -m launch.plan tells what each needs, and strategy.name=single trains all the same"
    )


def _instead(ways: Sequence[Prospect], why: str, *, may_stay: bool) -> Decision:
    """Return the fastest of the other ways that fit."""
    others = [each for each in ways if each.candidate.kind in INSTEAD]
    fitting = [each for each in others if each.fits]
    if not fitting and may_stay:
        return Decision(note=f"auto: ddp, although {why}: nothing else needs less")
    if not fitting:
        return Decision(
            problem=f"{why}, and {_shortfalls(others)}; use more processes, a smaller "
            "train.global_batch_size, or train.accumulate; python -m launch.plan tells what each "
            "needs, and strategy.name=ddp trains all the same"
        )
    best = min(fitting, key=lambda each: each.step_s or 0.0)
    said = [_refusal(each, best) for each in others if each.candidate.kind != best.candidate.kind]
    note = f"auto: {best.candidate.name}, since {' and '.join([why, *said[:1]])}"
    return Decision(settings_of(best.candidate), note)


def _refusal(each: Prospect, best: Prospect) -> str:
    name = each.candidate.name
    if each.problem:
        return f"{name} cannot be: {each.problem.partition(';')[0]}"
    if not each.fits:
        return f"{name} {shown_bytes(max(each.bytes, default=0))}"
    if each.step_s and best.step_s:
        return f"{name} should take {each.step_s / best.step_s:.2f}x the time"
    return f"{name} is no better"


def _shortfalls(others: Sequence[Prospect]) -> str:
    return " and ".join(
        f"{each.candidate.name} cannot be: {each.problem.partition(';')[0]}"
        if each.problem
        else f"{each.candidate.name} {shown_bytes(max(each.bytes, default=0))}"
        for each in others
    )


def settings_of(candidate: Candidate) -> dict[str, Any]:
    """Return the strategy's settings that the words of ``candidate`` give."""
    pairs = (word.removeprefix("strategy.").partition("=") for word in candidate.words)
    return {key: int(value) if value.isdigit() else value for key, _, value in pairs}


def _machine(world: World, limit: int) -> Machine:
    is_cpu = world.device.type == "cpu"
    per_node = max(1, world.local_size)
    return Machine(
        per_node,
        max(1, world.size // per_node),
        is_cpu=is_cpu,
        is_here=False,
        memory_bytes=limit,
        name="CPU" if is_cpu else torch.cuda.get_device_name(world.device),
    )


def _planned(config: Config, machine: Machine) -> tuple[Prospect, ...]:
    """Return what to expect, from a process of its own: this one is in a process group by now."""
    with Crew(1, 1, "cpu") as crew:
        found: tuple[Prospect, ...] = crew.ask(plan_alone, config, machine, timeout_s=TIMEOUT_S)
    return found


def plan_alone(world: World, config: Config, machine: Machine) -> tuple[Prospect, ...]:
    """Return what to expect, by counting, of a task that has been prepared before."""
    task = build_task(config.task)
    seed_all(config.seed)
    subject = Subject.of(config, task, task.datasets())
    found = foresee(config, machine, subject=subject, corrected=False, batches=False)
    return found.prospects
