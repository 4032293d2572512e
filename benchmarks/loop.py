"""The whole of launch.train's step against a minimal hand-written DDP loop with the same numbers.

    python benchmarks/loop.py [rounds [case]]

Each turn is a torchrun job of its own with two processes of one thread: ours, theirs, ours, ...
Both train on the same samples in the same order. Ours logs, times, reports metrics and writes
TensorBoard as any run does; theirs does nothing but train. The clock is a hook on the optimizer's
step, so neither loop is touched. Printed: milliseconds a step, the ratio of each pair of turns
that follow each other, and how far their mean losses over the last steps are apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from launch.config import Config, build, build_task, load
from launch.data import derive
from launch.run import run
from parallel import leave, whoami

CONFIGS = Path(__file__).parents[1] / "configs"


@dataclass(frozen=True)
class Case:
    """A shipped configuration, its changes, and the steps of a turn that are not counted."""

    file: str
    words: list[str]
    warm_up: int
    loss: Callable[[nn.Module, Any], torch.Tensor]  # the mean that a hand-written loop computes


def classified(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross entropy of a classifier."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def reconstructed(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the squared error of an autoencoder."""
    return nn.functional.mse_loss(model(batch), batch)


CASES = {
    "net": Case("net.yaml", [], 50, classified),
    "digits": Case("digits.yaml", ["train.epochs=10", "data.drop_last=true"], 20, classified),
    "autoencoder": Case(
        "autoencoder.yaml",
        ["task.image_size=64", "task.samples=24", "train.global_batch_size=2", "train.epochs=1"],
        2,
        reconstructed,
    ),
}


@dataclass
class Clock:
    """The moments at which optimizer steps ended."""

    moments: list[float] = field(default_factory=list)

    def __call__(self, *_: Any) -> None:
        """Note one step."""
        self.moments.append(perf_counter())

    def ms(self, warm_up: int) -> float:
        """Return milliseconds a step, warm-up left out."""
        counted = self.moments[warm_up:]
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

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(derive(0, "order", self.epoch))
        order = torch.randperm(len(self.dataset), generator=generator)  # type: ignore[arg-type]  # it is sized
        return iter(order[self.rank :: self.num_replicas].tolist())


def ours(config: Config, case: Case) -> float:
    """Train as launch.train does; return the mean loss of the last log interval."""
    run(config, whoami())
    rows = Path(config.runs, config.name, "metrics.jsonl").read_text().splitlines()
    return [float(row["loss"]) for row in map(json.loads, rows) if row["event"] == "step"][-1]


def theirs(config: Config, case: Case) -> float:
    """Train in the fewest lines that use DDP; return the mean loss over as many last steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(config.seed)
    task = build_task(config.task)
    dataset = Items(task.datasets()["train"])
    torch.manual_seed(config.seed)
    model = DistributedDataParallel(task.model())
    optimizer = build(config.optimizer, torch.optim.Optimizer, "optimizer", model.parameters())
    sampler = SameOrder(dataset)
    size = config.train.global_batch_size // dist.get_world_size()
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
    last = len(losses) % config.log.every_steps or config.log.every_steps
    mean = torch.stack(losses[-last:]).mean()
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def turn(side: str, name: str, folder: str) -> None:
    """Be one rank of one job; rank 0 prints milliseconds and loss."""
    case, clock = CASES[name], Clock()
    words = [*case.words, f"runs={folder}", "evaluate.every_epochs=null", "log.progress=none"]
    config = load([CONFIGS / case.file], words)
    register_optimizer_step_post_hook(clock)
    loss = (ours if side == "ours" else theirs)(config, case)
    if not whoami().rank:
        sys.stdout.write(json.dumps({"ms": clock.ms(case.warm_up), "loss": loss}) + "\n")


def job(side: str, name: str) -> dict[str, float]:
    """Return what one job printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["torch.distributed.run", "--standalone", "--nproc_per_node=2", __file__]
        done = subprocess.run(
            [sys.executable, "-m", *command, side, name, folder],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(name: str, rounds: int) -> str:
    """Return one line of the table."""
    pairs = [(job("ours", name), job("theirs", name)) for _ in range(rounds)]
    ratios = sorted(a["ms"] / b["ms"] for a, b in pairs)
    apart = max(abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in pairs)
    return (
        f"{name:12} ours {median(a['ms'] for a, _ in pairs):8.3f} ms   "
        f"theirs {median(b['ms'] for _, b in pairs):8.3f} ms   "
        f"ratio {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})   "
        f"losses apart {apart:.0e}"
    )


def main(words: list[str]) -> None:
    """Print the table, or be one rank of a turn."""
    if words and words[0] in ("ours", "theirs"):
        turn(*words)
        leave(0)
    rounds = int(words[0]) if words else 9
    for name in words[1:] or CASES:
        sys.stdout.write(compare(name, rounds) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
