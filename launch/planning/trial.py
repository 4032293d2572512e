"""Real first batches through the one-process engine: how long a step of so many samples takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter

from launch.config import Config, build_task
from launch.data import loader, seed_all
from launch.data.loader import Shares
from launch.planning.pace import Pace
from launch.planning.subject import Subject
from launch.task import Task
from parallel import Engine, Share, Single, Work, World
from parallel.modes import autocasting
from parallel.pipeline.layers import layers
from parallel.pipeline.profile import LayerCost, profile

EACH_S = 0.5  # for one size, warm-up aside
GROUPS, MOST_STEPS = 5, 240  # of so many groups the second fastest counts: others may be disturbed
BUDGET_S = 12.0  # for all sizes of one kind; what does not fit is left to be extended to


@dataclass(frozen=True)
class Asked:
    """What to try, in samples: alone, all together, and one microbatch's layers (0: none)."""

    config: Config
    alone: Sequence[int]
    together: Sequence[int]
    layers: int


@dataclass(frozen=True)
class Tried:
    """What came of it."""

    alone: dict[int, Pace]
    together: dict[int, Pace]
    layers: list[LayerCost]


def attempt(world: World, asked: Asked) -> Tried:
    """Return what rank 0 found. Collective over processes that hold a whole model each."""
    bench = Bench.of(world, asked.config)
    alone: dict[int, Pace] = {}
    if world.is_main:
        alone = _sizes(bench, asked.alone, lambda first_s: first_s)
    world.barrier()
    together = _sizes(bench, asked.together, lambda first_s: max(world.gather_objects(first_s)))
    merged = {
        size: _slowest([each[size] for each in every])
        for every in [world.gather_objects(together)]
        for size in together
    }
    costs: list[LayerCost] = []
    if asked.layers and world.is_main:
        costs = bench.layers(asked.layers)
    world.barrier()
    return Tried(alone, merged, costs)


@dataclass
class Bench:
    """A task under the one-process engine, in this process."""

    subject: Subject
    engine: Engine
    world: World

    @staticmethod
    def of(world: World, config: Config) -> Bench:
        """Return it ready; every process has its own."""
        task = build_task(config.task)
        seed_all(config.seed)
        subject = Subject.of(config, task, task.datasets())
        seed_all(config.seed)
        own = World(device=world.device)
        work: Work = replace(subject.work(own, None), model=task.model())
        work = replace(work, settings=replace(work.settings, compile=config.train.compile))
        return Bench(subject, Single().start(work), own)

    def shares(self, samples: int) -> Iterator[Share]:
        """Yield full batches of so many samples, epoch after epoch."""
        config, task = self.subject.config, self.subject.task
        own = type(task).collate is not Task.collate
        found: Shares = loader(
            self.subject.train,
            self.world,
            samples,
            seed=config.seed,
            collate=task.collate if own else None,
            double=config.train.precision == "float64",
        )
        for epoch in count():
            self.engine.phases.begin()
            for share in found.epoch(epoch, 0, self.engine.phases):
                if share.total == samples or (self.subject.samples or samples) < samples:
                    yield share

    def group(self, shares: Iterator[Share], steps: int) -> Pace:
        """Return the mean of ``steps`` steps."""
        phases = self.engine.phases
        phases.forget()
        start = perf_counter()
        for _ in range(steps):
            self.engine.train_step(next(shares))
        found = phases.seconds()  # waits for the device
        step_s = (perf_counter() - start) / steps
        data_s, forward_s, backward_s = (
            sum(found[name] for name in names) / steps
            for names in (("data", "transfer"), ("forward",), ("backward", "communication"))
        )
        if self.subject.config.data.workers:  # fetched meanwhile, by others
            step_s, data_s = step_s - data_s, 0.0
        return Pace(data_s, forward_s, backward_s, step_s - data_s - forward_s - backward_s)

    def layers(self, samples: int) -> list[LayerCost]:
        """Return what each layer costs on ``samples``."""
        batch, device = self.subject.batch(samples), self.world.device
        ask = self.subject.objective.inputs
        first = batch if ask is None else ask(batch)
        with autocasting(self.subject.config.train.precision, device)():
            return profile(layers(self.engine.module), first, "time", device)


def _sizes(bench: Bench, sizes: Sequence[int], agree: Callable[[float], float]) -> dict[int, Pace]:
    """Return the pace of each size that the budget allows, the smallest first.

    agree: returns for how long a step is taken, alike on all processes that go together.
    """
    found: dict[int, Pace] = {}
    begun, last_s, last = perf_counter(), 0.0, 1
    for size in sorted(set(sizes)):
        spent_s = agree(perf_counter() - begun)
        if found and spent_s + 3 * last_s * size / last > BUDGET_S:
            break
        shares = bench.shares(size)
        first_s = agree(min(bench.group(shares, 1).step_s for _ in range(2)))
        steps = int(min(MOST_STEPS, EACH_S / max(first_s, 1e-6)) / GROUPS)
        groups = [bench.group(shares, max(1, steps)) for _ in range(GROUPS if steps else 2)]
        found[size] = sorted(groups, key=lambda each: each.step_s)[1 if steps else 0]
        last_s, last = first_s, size
    return found


def _slowest(paces: Sequence[Pace]) -> Pace:
    """Return the pace of the process that all wait for."""
    return max(paces, key=lambda each: each.step_s)
