"""What times are made of: measured on this machine's devices, or counted for others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from launch.planning.candidates import Candidate
from launch.planning.crew import Crew, CrewError
from launch.planning.estimate import Costs, Tolls
from launch.planning.machine import (
    BETWEEN_LATENCY_S,
    BETWEEN_PER_S,
    FLOPS_PER_S,
    INSIDE_LATENCY_S,
    INSIDE_PER_S,
    Machine,
)
from launch.planning.pace import Pace
from launch.planning.room import UnpredictableError, need
from launch.planning.subject import Subject
from launch.planning.tolls import measure_tolls
from launch.planning.trial import Asked, Tried, attempt
from parallel import Share, Single
from parallel.errors import own_words
from parallel.imagined import Imagined, fresh
from parallel.modes import autocasting
from parallel.pipeline.layers import layers
from parallel.pipeline.profile import LayerCost, plain_kernels, profile
from parallel.sharded.blocks import find_blocks
from parallel.tracker import Tracker

TIMEOUT_S = 120.0
FREE = Tolls(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0)  # of one device, which sends nothing
MEMORY_PER_S = {True: 1e10, False: 1e12}  # bytes a second, of a CPU and of a GPU
CORE_FLOPS_PER_S = 2e10  # where a CPU's work is too large to be tried
BUSY = 0.75  # of the cores
TOUCHED = 5  # times that an update reads or writes each parameter's bytes


@dataclass(frozen=True)
class Found:
    """Costs, and how they were had, in words."""

    costs: Costs
    notes: tuple[str, ...]


def find_costs(subject: Subject, machine: Machine, ways: Sequence[Candidate]) -> Found:
    """Return what the times of ``ways`` are made of."""
    usable = [each for each in ways if not each.problem]
    blocks = 1 + len(find_blocks(subject.model, None).modules)
    rest = Costs(
        {},
        {},
        FREE,
        subject.gradient_bytes,
        blocks,
        overlaps=not machine.is_cpu,
        node=machine.devices_per_node,
    )
    why = _not_tried(subject, machine)
    if not why:
        try:
            return _measured(subject, machine, usable, rest)
        except CrewError as error:
            why = str(error)
    costs, notes = _counted(subject, machine, usable, rest)
    return Found(costs, (f"times are counted, not measured: {why}", *notes))


def _not_tried(subject: Subject, machine: Machine) -> str:
    """Return why nothing can be timed here, "" where it can."""
    if machine.flops_per_s is not None:
        return "--device-tflops is given"
    if not machine.is_here:
        return "these devices are not here"
    try:
        least = max(need(subject, Candidate("single", ("strategy.name=single",), 1, 1), 1))
    except UnpredictableError:
        return ""
    room = machine.memory_bytes
    if machine.is_cpu:
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        room //= 2 * machine.devices_per_node
    return "the model is too large to be tried on one device" if room and least > room else ""


def _measured(subject: Subject, machine: Machine, ways: Sequence[Candidate], rest: Costs) -> Found:
    batch = subject.config.train.global_batch_size
    alone = {max(each.sizes(batch)) for each in ways if each.devices == 1} | {batch}
    together = {
        size
        for each in ways
        if each.devices > 1
        for size in (max(each.sizes(batch)), -(-batch // each.replicas))
    }
    small = _layer_samples(ways, batch) if any(each.stages > 1 for each in ways) else 0
    asked = Asked(subject.config, sorted(alone), sorted(together), small)
    count, busy = machine.devices_per_node if together else 1, _busy(machine)
    with Crew(count, machine.cores, subject.config.launch.device) as crew:
        tolls = crew.ask(measure_tolls, timeout_s=TIMEOUT_S) if count > 1 else FREE
        tried: Tried = crew.ask(attempt, asked, timeout_s=TIMEOUT_S)
    notes = [f"times are measured on {count} x {machine.name}", *busy]
    if machine.nodes > 1 or machine.bytes_per_s is not None:
        tolls, note = _linked(machine, tolls)
        notes.append(note)
    costs = replace(
        rest,
        alone=tried.alone,
        together=tried.together or tried.alone,
        tolls=tolls,
        layers=tried.layers,
        layer_samples=max(small, 1),
    )
    return Found(costs, tuple(notes))


def _busy(machine: Machine) -> list[str]:
    """Say if others compute here: what is measured beside them is uncertain."""
    load = os.getloadavg()[0] if machine.is_cpu and hasattr(os, "getloadavg") else 0.0
    if load < BUSY * machine.cores * machine.devices_per_node:
        return []
    return [f"others are busy here (load {load:.1f}): times are uncertain, memory is not"]


def _layer_samples(ways: Sequence[Candidate], batch: int) -> int:
    """Return the samples of a middling microbatch: layers' parts hardly depend on it."""
    sizes = sorted(max(each.sizes(batch)) for each in ways if each.stages > 1)
    return sizes[len(sizes) // 2]


def _counted(
    subject: Subject, machine: Machine, ways: Sequence[Candidate], rest: Costs
) -> tuple[Costs, list[str]]:
    """Return costs by arithmetic, and what was taken for granted."""
    batch, notes = subject.config.train.global_batch_size, []
    speed = machine.flops_per_s
    if speed is None:
        speed = CORE_FLOPS_PER_S * machine.cores if machine.is_cpu else FLOPS_PER_S
        notes.append(
            f"a device is taken to reach {speed / 1e12:g} TFLOP/s; say better by --device-tflops"
        )
    work_s = flops(subject, batch) / speed / batch  # of a sample
    update_s = TOUCHED * subject.gradient_bytes / MEMORY_PER_S[machine.is_cpu]
    paces = {
        size: Pace(0.0, size * work_s / 3, size * work_s * 2 / 3, update_s) for size in (1, batch)
    }
    tolls, note = _linked(machine, _assumed(machine))
    found: list[LayerCost] = []
    small = _layer_samples(ways, batch) if any(each.stages > 1 for each in ways) else 0
    if small:
        found = [_as_time(each) for each in _layer_flops(subject, small)]
    costs = replace(
        rest, alone=paces, together=paces, tolls=tolls, layers=found, layer_samples=max(small, 1)
    )
    return costs, [*notes, *([note] if machine.devices > 1 else [])]


def _linked(machine: Machine, tolls: Tolls) -> tuple[Tolls, str]:
    """Return ``tolls`` over the slowest link that a step crosses, and what that is."""
    latency_s = max(tolls.latency_s, BETWEEN_LATENCY_S if machine.nodes > 1 else 0.0)
    speed = machine.bytes_per_s or (BETWEEN_PER_S if machine.nodes > 1 else INSIDE_PER_S)
    what = "as given" if machine.bytes_per_s else "taken for granted; say better by --bandwidth"
    own = replace(
        tolls,
        latency_s=latency_s,
        reduced_per_s=speed,
        gathered_per_s=speed,
        sent_per_s=speed,
        inside_per_s=speed if machine.nodes == 1 else tolls.inside_per_s,
    )
    return own, f"the slowest link carries {8 * speed / 1e9:g} Gbit/s, {what}"


def _assumed(machine: Machine) -> Tolls:
    """Return what a message, a block and a microbatch usually cost; launching kernels, mostly."""
    latency_s = BETWEEN_LATENCY_S if machine.nodes > 1 else INSIDE_LATENCY_S
    ring = 2 * (machine.devices - 1) * latency_s
    return Tolls(ring, 1e-4 + ring, 2 * ring, 3e-4, latency_s, 1.0, 1.0, 1.0, INSIDE_PER_S)


def flops(subject: Subject, batch: int) -> int:
    """Return the arithmetic of a step of one process on ``batch`` samples; nothing is computed."""
    given = subject.batch(batch)
    world = Imagined(0, 1, device=torch.device("cpu"))
    work = replace(subject.work(world, given), world=world)
    try:
        with (
            closing(Single().rehearse(work)) as engines,
            FakeTensorMode(allow_non_fake_inputs=True),
            Tracker(world.device, is_imagined=True),  # answers what asks for a number
        ):
            engine, own = next(engines), fresh(given, world.device)
            with FlopCounterMode(display=False) as counter, plain_kernels():
                engine.train_step(Share([own], [batch], batch))
    except Exception as error:  # a task's own code may raise anything
        said = own_words(error).strip().partition("\n")[0][:200]
        raise UnpredictableError(
            f"its arithmetic cannot be counted: {type(error).__name__}: {said}"
        ) from error
    return int(counter.get_total_flops())


def _layer_flops(subject: Subject, samples: int) -> list[LayerCost]:
    given, ask = subject.batch(samples), subject.objective.inputs
    first, cpu = given if ask is None else ask(given), torch.device("cpu")
    with autocasting(subject.config.train.precision, cpu)():
        return profile(layers(subject.model), first, "flops", cpu)


def _as_time(each: LayerCost) -> LayerCost:
    return replace(each, forward_s=each.flops / 3, backward_s=each.flops * 2 / 3)
