"""The bytes that training takes on each device, predicted: no memory is taken, nothing computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

from parallel.errors import UsageError
from parallel.imagined import Imagined, fresh
from parallel.strategy import Batch, Engine, Share, Strategy, Work
from parallel.tracker import Tracker

STEPS = 2  # the first makes the optimizers' state
HOST = torch.device("cpu")
PROCESS = 8_000_000  # bytes: threads, connections, code that is loaded when it is first used


@dataclass(frozen=True)
class Footprint:
    """The bytes of one device at the moment of a step when tensors take most.

    parameters: and buffers. optimizer: its state. inputs: the batches of the step.
    activations: what forwards have kept for their backwards, and messages under way between
        stages. transient: what else is alive, such as the gradients of activations, and what a
        forward that has not ended yet will keep.
    workspace: what kernels take for themselves, as far as the device needs more by it, and what
        a process takes for itself, both estimated; less what it has no memory for yet, as what a
        stage waits for.
    """

    parameters: int
    gradients: int
    optimizer: int
    inputs: int
    activations: int
    transient: int
    workspace: int

    @property
    def peak(self) -> int:
        """The bytes of all tensors."""
        return self.need - self.workspace

    @property
    def need(self) -> int:
        """The bytes of all tensors, and the workspace."""
        fields = (self.parameters, self.gradients, self.optimizer, self.inputs)
        return sum(fields) + self.activations + self.transient + self.workspace


def predict(strategy: Strategy, work: Work, batches: Sequence[Batch]) -> list[Footprint]:
    """Return what each process of ``work.world``, by rank, will need in training by ``strategy``.

    work: the model may be on the meta device; the world only says how many processes there are.
    batches: what one replica gets for one step, one for each of its rounds or microbatches;
        shapes and types are looked at, numbers are not. The same one may come several times.

    The step that training runs is run here on fake tensors, so what is counted is what its
    tensors take, on any machine: that is exact on the CPU. Fake tensors are always the CPU's,
    since torch without CUDA cannot differentiate through others: on a GPU, other kernels may keep
    somewhat more or less, and the driver's own memory and what the allocator loses come on top.
    """
    if not batches:
        raise UsageError("memory is predicted from what a step is given: at least one batch")
    settings = replace(work.settings, compile=False)
    world = Imagined(0, work.world.size, device=HOST)
    asked = replace(work, settings=settings, world=world, example=lambda: batches[0])
    found: list[Footprint] = []
    with closing(strategy.rehearse(asked)) as engines, FakeTensorMode(allow_non_fake_inputs=True):
        while (seen := _see_next(engines, batches)) is not None:
            found.append(seen)
    return found * (work.world.size // len(found))


def _see_next(engines: Iterator[Engine], batches: Sequence[Batch]) -> Footprint | None:
    """Return what the next engine takes, from when it is made; None where there is none."""
    tracker = Tracker(HOST, is_imagined=True)
    with tracker:
        engine = next(engines, None)
        if engine is None:
            return None
        tracker.awaited = engine.awaited
        take_steps(engine, tracker, [fresh(batch, HOST) for batch in batches], STEPS)
    return footprint(tracker)


def take_steps(engine: Engine, tracker: Tracker, batches: Sequence[Batch], steps: int) -> None:
    """Train for ``steps`` on ``batches`` while ``tracker``, which is entered, looks on."""
    module = engine.module
    tracker.add([*module.parameters(), *module.buffers()], "parameters")
    tracker.parameters = list(module.parameters())
    tracker.add(tree_leaves(list(batches)), "inputs")
    share = Share(batches, [1] * len(batches), len(batches))
    for _ in range(steps):
        engine.train_step(share)
        tracker.add((each.grad for each in module.parameters()), "gradients")
        states = [slots for each in engine.optimizers for slots in each.state.values()]
        tracker.add(tree_leaves(states), "optimizer")


def footprint(tracker: Tracker) -> Footprint:
    """Return what ``tracker`` saw."""
    kinds = tracker.at_peak()
    return Footprint(
        parameters=kinds.get("parameters", 0),
        gradients=kinds.get("gradients", 0),
        optimizer=kinds.get("optimizer", 0),
        inputs=kinds.get("inputs", 0),
        activations=kinds.get("activations", 0),
        transient=kinds.get("", 0),
        workspace=tracker.need - tracker.peak + PROCESS,
    )
