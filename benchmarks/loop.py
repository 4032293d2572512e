"""The whole of launch.train's step against a minimal hand-written DDP loop with the same numbers.

    OMP_NUM_THREADS=1 torchrun --standalone --nproc_per_node=2 benchmarks/loop.py [rounds [case]]

Both train in the same processes, by turns, on the same samples in the same order. Ours logs,
times, reports metrics and writes TensorBoard as a run does; theirs does nothing but train. The
clock is a hook on the optimizer's step, so neither loop is touched. Printed: milliseconds a step,
the ratio of each pair of turns, and how far the two final losses are apart.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from launch.assemble import assemble
from launch.config import build, build_task, load
from launch.data import derive
from launch.listeners import ClosingListener, Records, Status, TensorBoard, fan_out
from launch.prepare import prepare
from parallel import World, join, leave, whoami

WARM_UP = 4  # steps of each turn that are not counted


@dataclass(frozen=True)
class Case:
    """A configuration, and the mean loss that a hand-written loop would compute from a batch."""

    name: str
    words: list[str]
    loss: Callable[[nn.Module, Any], torch.Tensor]


def classified(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross entropy of a classifier."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def reconstructed(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the squared error of an autoencoder."""
    pictures = batch if isinstance(batch, torch.Tensor) else batch[0]
    return nn.functional.mse_loss(model(pictures), pictures)


NET = ["task._target_=launch.tasks.net.Net", "optimizer._target_=torch.optim.SGD"]
AUTOENCODER = ["task._target_=launch.tasks.autoencoder.Autoencoder", "task.image_size=64"]
CASES = [
    Case(
        "net",
        [*NET, "optimizer.lr=0.01", "train.global_batch_size=100", "train.epochs=5"],
        classified,
    ),
    Case("digits", ["train.epochs=6", "data.drop_last=true"], classified),
    Case(
        "autoencoder 64x64",
        [
            *AUTOENCODER,
            *("task.samples=32", "optimizer._target_=torch.optim.Adam", "optimizer.lr=1e-4"),
            *("train.global_batch_size=2", "train.epochs=1"),
        ],
        reconstructed,
    ),
]


@dataclass
class Clock:
    """The moments at which optimizer steps ended."""

    moments: list[float] = field(default_factory=list)

    def __call__(self, *_: Any) -> None:
        """Note one step."""
        self.moments.append(perf_counter())

    def ms(self) -> float:
        """Return milliseconds a step since the last call, warm-up left out."""
        counted, self.moments = self.moments[WARM_UP:], []
        return (counted[-1] - counted[0]) / (len(counted) - 1) * 1e3


class Items(Dataset[Any]):
    """A dataset asked for one sample at a time, as a hand-written loop's is."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


class SameOrder(DistributedSampler[int]):
    """DistributedSampler with the permutation that ours draws, so that both see the same."""

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(derive(0, "order", self.epoch))
        order = torch.randperm(len(self.dataset), generator=generator)  # type: ignore[arg-type]  # it is sized
        return iter(order[self.rank :: self.num_replicas].tolist())


def ours(case: Case, world: World, folder: Path) -> float:
    """Train as launch.train does; return the last loss."""
    words = [*case.words, f"runs={folder}", "evaluate.every_epochs=null", "log.progress=none"]
    words.append("evaluate.batch_size=360")
    prepared = prepare(load([], words), whoami())
    path = prepared.folder
    path.mkdir(parents=True, exist_ok=True)
    seen: list[float] = []

    def remember(event: Any) -> None:
        if type(event).__name__ == "Progress":
            seen.append(event.loss)

    attached: list[ClosingListener] = []
    if world.is_main:
        attached = [Records(path), Status(path), TensorBoard(path)]
    listeners = fan_out(*attached)

    def tell(event: Any) -> None:
        listeners(event)
        remember(event)

    training = assemble(prepared, world, tell)
    training.reporter.start()
    training.fit()
    listeners.close()
    return seen[-1]


def theirs(case: Case, world: World, folder: Path) -> float:
    """Train in the fewest lines that use DDP; return the mean loss of the last ten steps."""
    config = load([], case.words)
    torch.manual_seed(config.seed)
    task = build_task(config.task)
    dataset = Items(task.datasets()["train"])
    torch.manual_seed(config.seed)
    model = DistributedDataParallel(task.model())
    optimizer = build(
        config.optimizer, torch.optim.Optimizer, "optimizer", params=model.parameters()
    )
    sampler = SameOrder(dataset, world.size, world.rank)
    size = config.train.global_batch_size // world.size
    loader = DataLoader(dataset, size, sampler=sampler, drop_last=config.data.drop_last)
    losses = []
    for epoch in range(config.train.epochs or 1):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss = case.loss(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    last = len(losses) % 10 or 10
    return float(world.sum(torch.stack(losses[-last:]).mean()) / world.size)


@contextmanager
def all_cores() -> Iterator[None]:
    """Undo what ``join`` does for us: a hand-written loop leaves its threads to the kernel."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def compare(case: Case, world: World, clock: Clock, rounds: int, folder: Path) -> str:
    """Return one line of the table."""
    rows: list[tuple[float, float]] = []
    apart = 0.0
    for number in range(rounds + 1):  # the first turns warm everything up
        ends, row = [], []
        for turn in (ours, theirs):
            with all_cores() if turn is theirs else nullcontext():
                ends.append(turn(case, world, folder / f"{case.name}-{number}"))
            row.append(clock.ms())
        apart = max(apart, abs(ends[0] - ends[1]) / max(abs(ends[1]), 1e-12))
        rows.append((row[0], row[1]))
    pairs = rows[1:]
    ratios = sorted(a / b for a, b in pairs)
    return (
        f"{case.name:18} ours {median(a for a, _ in pairs):8.3f} ms   "
        f"theirs {median(b for _, b in pairs):8.3f} ms   "
        f"ratio {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})   "
        f"losses apart {apart:.1e}"
    )


def main() -> None:
    """Print the table on rank 0."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    clock = Clock()
    register_optimizer_step_post_hook(clock)
    with join() as world, tempfile.TemporaryDirectory() as folder:
        torch.set_num_threads(1)
        shared = Path(world.share(folder))
        wanted = sys.argv[2] if len(sys.argv) > 2 else ""
        for case in (case for case in CASES if case.name.startswith(wanted)):
            line = compare(case, world, clock, rounds, shared)
            if world.is_main:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
        world.barrier()


if __name__ == "__main__":
    main()
    leave(0)
