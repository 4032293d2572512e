"""How close a pipeline comes to its schedule's ideal, and what it gives on two real cores.

    python benchmarks/pipeline.py sleep [rounds]      stages that sleep: immune to other work
    python benchmarks/pipeline.py compute [rounds]    two processes of one thread, by turns

``sleep``: 480 ms of work a step over all stages, 8 microbatches, messages of 1 MB; then the
measured layer shares of the autoencoder (960 ms), cut as the tutorials cut it and automatically.
Printed: the median step, that of the schedule without messages (``simulate``), and their ratio.
``compute``: every row does one step after the other in the same two processes; what one process
does alone is done while the other waits. Printed: medians, and medians of the ratios by turns.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes
from torch.optim import SGD, Optimizer

from launch.objective import objective
from launch.task import Task
from launch.tasks.autoencoder import Autoencoder
from launch.tasks.text import Text
from parallel import (
    Engine,
    ModelParallel,
    Objective,
    Outcome,
    Pipeline,
    Settings,
    Share,
    Single,
    Strategy,
    Work,
    World,
    join,
)
from parallel.partition import bounds, cut
from parallel.pipeline.schedule import simulate

# of the full-width autoencoder at 64x64, measured in CPU time, in percent
SHARES = (0.1, 0.1, 0.2, 0.6, 2.3, 9.7, 38.4, 36.4, 8.9, 2.3, 0.7, 0.2, 0.1, 0.05)
TUTORIAL = (6,)  # after the 512-channel convolution
NUMBERS = 2**18  # of four bytes: a message of 1 MB
MICROBATCHES = 8


class Sleep(torch.autograd.Function):
    """Takes its time, forward once and backward twice, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, seconds: float) -> Tensor:
        """Return ``given`` itself after ``seconds``."""
        ctx.seconds = seconds
        _sleep("F", seconds)
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients after twice the time."""
        _sleep("B", 2 * ctx.seconds)
        return gradients[0], torch.zeros(()), None


class Loss(torch.autograd.Function):
    """A loss that costs nothing, and whose gradient has the outputs' size."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor) -> Tensor:
        """Return 0."""
        ctx.gradient = outputs.detach()
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return some gradient: memory that is there already, as that of a real one is."""
        gradient: Tensor = ctx.gradient
        return gradient


SLEPT: dict[str, list[float]] = {"F": [], "B": []}  # seconds, a step's: a sleep takes a bit longer


def _sleep(kind: str, seconds: float) -> None:
    start = time.perf_counter()
    time.sleep(seconds)
    SLEPT[kind].append(time.perf_counter() - start)


class Sleeper(nn.Module):
    """A layer that sleeps for ``seconds`` forward and twice that backward."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, given: Tensor) -> Tensor:
        """Return what was given, after a while."""
        slept: Tensor = Sleep.apply(given, self.weight, self.seconds)  # type: ignore[no-untyped-call]
        return slept


@dataclass(frozen=True)
class Sleeping:
    """Seconds of each layer's forward for a microbatch, and the cuts."""

    name: str
    forward_s: Sequence[float]
    cuts: tuple[int, ...]

    @property
    def stages(self) -> int:
        """How many devices it wants."""
        return len(self.cuts) + 1

    def times(self) -> list[tuple[float, float]]:
        """Return forward and backward seconds of each stage."""
        stages = bounds(len(self.forward_s), self.cuts)
        sums = [sum(self.forward_s[a:b]) for a, b in stages]
        return [(each, 2 * each) for each in sums]


def sleeping() -> list[Sleeping]:
    """Return the cases."""
    even = 0.480 / 3 / MICROBATCHES
    cases = [Sleeping(f"{n} even stages", [even / n] * n, tuple(range(1, n))) for n in (2, 4)]
    layers = [0.960 / 3 / MICROBATCHES * share / sum(SHARES) for share in SHARES]
    return [
        *cases,
        Sleeping("autoencoder, tutorial cut", layers, TUTORIAL),
        Sleeping("autoencoder, automatic cut", layers, cut(layers, 2)),
    ]


def _free(outputs: Tensor, batch: Tensor) -> Outcome:
    loss: Tensor = Loss.apply(outputs)  # type: ignore[no-untyped-call]
    return Outcome(loss)


def _asleep(world: World, case: Sleeping, rounds: int, found: Path) -> None:
    model = nn.Sequential(*map(Sleeper, case.forward_s))
    ask = Objective(lambda m, b: _free(m(b), b), lambda m, b: _free(m(b), b), _same, _free, _free)
    strategy = Pipeline(
        stages=case.stages, split=list(case.cuts), balance="params", microbatches=MICROBATCHES
    )
    engine = strategy.engine(model, _sgd, ask, Settings(), world)
    batches = [torch.ones(1, NUMBERS) for _ in range(MICROBATCHES)]
    share = Share(batches, [1] * MICROBATCHES, MICROBATCHES)
    ratios, steps = [], []
    for turn in range(rounds + 2):
        for kind in SLEPT.values():
            kind.clear()
        step = _timed(world, engine, share)
        mine = torch.tensor([sum(SLEPT[kind]) / MICROBATCHES for kind in "FB"])
        times = [(forward, backward) for forward, backward in world.gather(mine).tolist()]
        ideal = simulate(times, "1f1b", MICROBATCHES).step_s
        if turn > 1:
            ratios.append(ideal / step)
            steps.append(step)
    if world.is_main:
        found.write_text(f"{median(steps)} {median(ratios)} {max(ratios)}")


def _same(batch: Tensor) -> Tensor:
    return batch


def _sgd(model: nn.Module) -> list[Optimizer]:
    return [SGD(model.parameters(), lr=1e-3)]


def _timed(world: World, engine: Engine | None, share: Share) -> float:
    world.barrier()
    start = time.perf_counter()
    if engine is not None:
        engine.train_step(share)
    took = torch.tensor([time.perf_counter() - start])
    return float(world.gather(took).max())


def show(line: str) -> None:
    """Write a line."""
    sys.stdout.write(f"{line}\n")


def sleep(rounds: int) -> None:
    """Print the table of sleeping stages."""
    show(f"{'':28} {'ideal':>8} {'measured':>8} {'of ideal':>8} {'best':>8} {'of one device':>14}")
    for case in sleeping():
        measured, ratio, best = map(float, _ranks(_asleep, case.stages, case, rounds).split())
        alone = 3 * sum(case.forward_s) * MICROBATCHES
        ideal = simulate(case.times(), "1f1b", MICROBATCHES).step_s
        show(
            f"{case.name:28} {ideal * 1e3:5.0f} ms {measured * 1e3:5.0f} ms "
            f"{ratio:8.1%} {best:8.1%} {alone / measured:13.2f}x"
        )


@dataclass(frozen=True)
class Computing:
    """A task, its batch, and how many microbatches the pipeline makes of it."""

    name: str
    task: Task
    batch: int
    microbatches: int


CASES = (
    Computing("autoencoder/8, 128x128", Autoencoder(128, 1 / 8, 8), 8, 8),
    Computing("text, 8 layers of 256, context 128", Text(width=256, layers=8, context=128), 8, 4),
    Computing("text, 8 layers of 256, context 64", Text(width=256, layers=8), 8, 4),
)


def rows(case: Computing) -> Mapping[str, tuple[Strategy, int]]:
    """Return each row's strategy and rounds of accumulation."""
    return {
        "single": (Single(), 1),
        f"single, accumulate {case.microbatches}": (Single(), case.microbatches),
        "model_parallel": (ModelParallel(), 1),
        "pipeline": (Pipeline(microbatches=case.microbatches), 1),
    }


def _computed(world: World, case: Computing, rounds: int, found: Path) -> None:
    dataset: Any = case.task.datasets()["train"]
    samples = dataset.__getitems__(list(range(case.batch)))
    engines: dict[str, tuple[Engine | None, Share]] = {}
    lines: list[str] = []
    for name, (strategy, accumulate) in rows(case).items():
        parts = samples.tensor_split(strategy.rounds(accumulate))
        share = Share(parts, [len(part) for part in parts], case.batch)
        torch.manual_seed(0)
        alone = isinstance(strategy, Single)
        engine = None
        if world.is_main or not alone:
            work = Work(
                case.task.model(),
                _sgd,
                objective(case.task),
                Settings(),
                World() if alone else world,
                partial(_same, parts[0]),
            )
            engine = strategy.start(work)
            lines += engine.notices if name == "pipeline" else []
        engines[name] = engine, share
    turns = [
        {name: _timed(world, engine, share) for name, (engine, share) in engines.items()}
        for _ in range(rounds + 1)
    ][1:]
    if world.is_main:
        naive = "model_parallel"
        for name in engines:
            step = median(turn[name] for turn in turns)
            gain = median(turn["single"] / turn[name] for turn in turns)
            over = median(turn[naive] / turn[name] for turn in turns)
            lines.append(f"{name:24} {step * 1e3:6.0f} ms {gain:9.2f}x {over:12.2f}x")
        found.write_text("\n".join(lines))


def compute(rounds: int) -> None:
    """Print the table of real work."""
    for case in CASES:
        show(f"\n{case.name}, batch {case.batch}, {case.microbatches} microbatches")
        show(f"{'':24} {'step':>9} {'of single':>10} {'of naive':>13}")
        show(_ranks(_computed, 2, case, rounds))


def _ranks(body: Callable[..., None], size: int, *args: Any) -> str:
    """Call ``body(world, *args, file)`` in so many processes of one thread; return the file."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found")
        start_processes(_rank, (size, folder, body, (*args, found)), size, start_method="fork")
        return found.read_text()


def _rank(rank: int, size: int, folder: str, body: Callable[..., None], args: tuple[Any]) -> None:
    torch.set_num_threads(1)
    with join(rank=rank, size=size, store=f"{folder}/store") as world:
        body(world, *args)


if __name__ == "__main__":
    which = {"sleep": sleep, "compute": compute}
    which[sys.argv[1] if len(sys.argv) > 1 else "sleep"](int(*sys.argv[2:3] or ["5"]))
