"""What working together costs on this machine: real engines at work on next to nothing.

Each way trains a chain of layers that only scale what they get, so that nearly all of a step is
what the way itself takes; what one process takes for the same chain is subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor, nn

from launch.planning.estimate import Tolls
from parallel import (
    DDP,
    FSDP,
    Objective,
    Outcome,
    Pipeline,
    Settings,
    Share,
    Single,
    Strategy,
    Work,
    World,
)
from parallel.pipeline.schedule import simulate

GROUPS, EACH_S, MOST_STEPS = 5, 0.03, 40  # as in trials, the second fastest group counts
NARROW, WIDE = 64, 2**17  # numbers: 256 B and 512 KiB
LAYERS = 8
FEW, MANY = 2, 7  # microbatches
LEAST = 1e-7  # seconds: what noise has made negative
PER_S = 1e12  # bytes: where noise says that more of them take no longer


class Scale(nn.Module):
    """As many parameters as numbers in a sample, and no arithmetic to speak of."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones(width))

    def forward(self, given: Tensor) -> Tensor:
        """Return ``given`` [n, width], scaled."""
        return given * self.factors


def measure_tolls(world: World) -> Tolls:
    """Return what several processes cost here. Collective; alike on all ranks."""
    alone = {w: _alone(world, w, 1) for w in (NARROW, WIDE)}
    ddp = {w: _seconds(world, DDP(), w, 1) - alone[w] for w in (NARROW, WIDE)}
    sharded = {w: _seconds(world, FSDP(), w, 1) - alone[w] for w in (NARROW, WIDE)}
    more, size = world.size, 4 * LAYERS * (WIDE - NARROW)
    staged_s, microbatch_s, sent_per_s, latency_s = _staged(world)
    return Tolls(
        ddp_s=max(LEAST, ddp[NARROW]),
        block_s=max(LEAST, sharded[NARROW] / (LAYERS + 1)),  # the rest of the model is one, too
        staged_s=staged_s,
        microbatch_s=microbatch_s,
        latency_s=latency_s,
        reduced_per_s=_per_s(2 * (more - 1) / more * size, ddp[WIDE] - ddp[NARROW]),
        gathered_per_s=_per_s(3 * (more - 1) / more * size, sharded[WIDE] - sharded[NARROW]),
        sent_per_s=sent_per_s,
        inside_per_s=sent_per_s,
    )


def _staged(world: World) -> tuple[float, float, float, float]:
    """Return a pipeline's seconds a step, a microbatch on each stage, bytes/s, and latency."""
    stages = world.size
    found = {
        (w, m): _seconds(world, _pipeline(stages, m), w, m)
        for w, m in ((NARROW, FEW), (NARROW, MANY), (WIDE, FEW), (WIDE, MANY))
    }
    alone = {(w, m): _alone(world, w, m) for w, m in found}
    own = {w: (alone[w, MANY] - alone[w, FEW]) / (MANY - FEW) / stages for w in (NARROW, WIDE)}
    each = {w: (found[w, MANY] - found[w, FEW]) / (MANY - FEW) for w in (NARROW, WIDE)}
    microbatch_s = max(LEAST, each[NARROW] - own[NARROW])
    moved_s = (each[WIDE] - own[WIDE]) - (each[NARROW] - own[NARROW])
    latency_s = microbatch_s / 4  # a message is sent and received by the same work as counted here
    half = (own[NARROW] + microbatch_s) / 2
    ideal = simulate([(half, half)] * stages, "1f1b", FEW, [latency_s] * (stages - 1), 1)
    staged_s = max(LEAST, found[NARROW, FEW] - ideal.step_s)
    return staged_s, microbatch_s, _per_s(4 * (WIDE - NARROW), moved_s / 2), latency_s


def _pipeline(stages: int, microbatches: int) -> Pipeline:
    cuts = [LAYERS * stage // stages for stage in range(1, stages)]
    return Pipeline(stages, list(cuts), "params", microbatches=microbatches)


def _alone(world: World, width: int, rounds: int) -> float:
    """Return the seconds of a step in which each process trains the whole chain for itself."""
    return _seconds(world, Single(), width, rounds)


def _seconds(world: World, strategy: Strategy, width: int, rounds: int) -> float:
    """Return the seconds of a step: the median of groups, of the slowest process. Collective."""
    work = _work(world, width)
    if isinstance(strategy, Single):
        work = replace(work, world=World(device=world.device))
    engine = strategy.start(work)
    batch = torch.ones(1, width, device=world.device)
    share = Share([batch] * rounds, [1] * rounds, rounds * strategy.replicas(world))

    def group(steps: int) -> float:
        start = perf_counter()
        for _ in range(steps):
            engine.train_step(share)
        engine.phases.forget()  # waits for the device
        return (perf_counter() - start) / steps

    group(2)
    steps = int(EACH_S / max(world.gather_objects(group(1))))
    steps = min(MOST_STEPS, max(1, steps))
    found: Sequence[float] = [group(steps) for _ in range(GROUPS)]
    return max(world.gather_objects(sorted(found)[1]))


def _work(world: World, width: int) -> Work:
    def loss(model: nn.Module, batch: Tensor) -> Outcome:
        return of_outputs(model(batch), batch)

    def of_outputs(outputs: Tensor, batch: Tensor) -> Outcome:
        return Outcome(outputs.mean())

    objective = Objective(loss, loss, lambda batch: batch, of_outputs, of_outputs)
    model = nn.Sequential(*(Scale(width) for _ in range(LAYERS)))
    batch = torch.ones(1, width, device=world.device)
    return Work(
        model,
        lambda module: [torch.optim.SGD(module.parameters(), lr=0.0)],
        objective,
        Settings(),
        world,
        lambda: batch,
    )


def _per_s(size: float, seconds: float) -> float:
    return size / seconds if seconds > size / PER_S else PER_S
