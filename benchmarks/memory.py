"""Memory: predicted, counted tensor by tensor in real training, and taken by the process.

    python benchmarks/memory.py [held-out | fitted | CASE ...]

For each case the prediction is made here, where nothing is computed. Then fresh processes, one a
device, train two steps, and their peak of resident memory beyond what they had before the model was
built is read from /proc (Linux); then they do it once more while a tracker counts the bytes of live
tensors. Both are printed with how far the prediction is off. What kernels and a process take beside
tensors was fitted on the cases `fitted`; the cases `held-out` are others.

glibc keeps freed memory, so that a process seems to need more than it does; here blocks of 64 KiB
and more are given back at once: MALLOC_MMAP_THRESHOLD_=65536, MALLOC_TRIM_THRESHOLD_=65536.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from launch.comparison.memory import resident, warm_up
from launch.objective import objective
from launch.task import Task
from launch.tasks.autoencoder import Autoencoder
from launch.tasks.digits import Digits
from launch.tasks.net import Net
from launch.tasks.text import Text
from parallel import DDP, Pipeline, Settings, Share, Single, Strategy, Work, World, join
from parallel.memory import Footprint, predict, take_steps
from parallel.tracker import Tracker

ROOT = Path(__file__).parents[1]
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
MB = 1e6
OPTIMIZERS: Mapping[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 1e-3}),
    "momentum": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3}),
    "fused AdamW": (torch.optim.AdamW, {"lr": 1e-3, "fused": True}),
}


@dataclass(frozen=True)
class Case:
    """What is trained; rounds: batches or microbatches of ``samples`` each, in a replica's step."""

    task: Task
    samples: int
    rounds: int = 1
    strategy: Strategy = field(default_factory=Single)
    processes: int = 1
    precision: str = "float32"
    optimizer: str = "fused AdamW"

    def batch(self, device: str) -> Any:
        """Return one batch without meaning, as the loader gives it."""
        task, dtype = self.task, torch.float64 if self.precision == "float64" else torch.float32
        if isinstance(task, Text):
            return torch.zeros(self.samples, task.context + 1, dtype=torch.int64, device=device)
        labels = torch.zeros(self.samples, dtype=torch.int64, device=device)
        if isinstance(task, Autoencoder):
            size = task.image_size
            return torch.ones(self.samples, 3, size, size, dtype=dtype, device=device)
        inputs = (task.features,) if isinstance(task, Net) else (1, 8, 8)
        return torch.ones(self.samples, *inputs, dtype=dtype, device=device), labels

    def optimizers(self, model: nn.Module) -> list[Optimizer]:
        """Return the case's optimizer."""
        kind, keys = OPTIMIZERS[self.optimizer]
        return [kind(model.parameters(), **keys)]

    def work(self, model: nn.Module, world: World) -> Work:
        """Return what a strategy is put to."""
        settings = Settings(precision=self.precision)
        batch = self.batch("meta")
        return Work(model, self.optimizers, objective(self.task), settings, world, lambda: batch)


def pipeline(stages: int, split: Sequence[int], schedule: str, rounds: int, every: int) -> Pipeline:
    """Return a strategy that times nothing, and builds no more than a stage in a process."""
    given = Pipeline(stages, list(split), "params", microbatches=rounds, schedule=schedule)
    return replace(given, checkpoint_every=every, build="stage")


FITTED = {
    "autoencoder/4": Case(Autoencoder(96, 0.25), 8),
    "autoencoder/8 SGD": Case(Autoencoder(128, 0.125), 4, optimizer="SGD"),
    "autoencoder/8 float64": Case(Autoencoder(64, 0.125), 8, precision="float64"),
    "autoencoder/4 gpipe": Case(
        Autoencoder(96, 0.25), 2, 4, pipeline(2, [14], "gpipe", 4, 0), processes=2
    ),
    "text": Case(Text(width=256, layers=8, context=128), 16),
    "text bfloat16": Case(Text(width=256, layers=4, context=128), 16, precision="bfloat16"),
    "text 1f1b again": Case(
        Text(width=256, layers=8, context=128), 8, 4, pipeline(2, [5], "1f1b", 4, 1), processes=2
    ),
    "text gpipe again, AdamW": Case(
        Text(width=128, layers=12, context=192),
        *(8, 4, pipeline(2, [7], "gpipe", 4, 2), 2, "float32", "AdamW"),
    ),
    "digits": Case(Digits(width=64), 1024),
    "digits ddp": Case(Digits(width=64), 512, 2, DDP(), processes=2),
}
HELD_OUT = {
    "autoencoder/16, 160x160, momentum": Case(Autoencoder(160, 1 / 16), 6, optimizer="momentum"),
    "autoencoder/2, 64x64, AdamW": Case(Autoencoder(64, 0.5), 4, optimizer="AdamW"),
    "autoencoder/8, 112x112, 2 stages, 1f1b, 8": Case(
        Autoencoder(112, 0.125), 2, 8, pipeline(2, [15], "1f1b", 8, 0), processes=2
    ),
    "autoencoder/4, 80x80, 2 stages, gpipe, 4, again by 4, SGD": Case(
        Autoencoder(80, 0.25), 4, 4, pipeline(2, [12], "gpipe", 4, 4), 2, optimizer="SGD"
    ),
    "autoencoder/8, 96x96, ddp": Case(Autoencoder(96, 0.125), 4, 2, DDP(), 2),
    "text 192 wide, bfloat16": Case(
        Text(width=192, layers=6, context=96), 24, precision="bfloat16"
    ),
    "text 320 wide, 3 stages, 1f1b, 8": Case(
        Text(width=320, layers=10, context=64), 8, 8, pipeline(3, [4, 8], "1f1b", 8, 0), 3
    ),
    "text 224 wide, 2 stages, 1f1b, 6, again by 3, AdamW": Case(
        Text(width=224, layers=7, heads=7, context=160),
        *(6, 6, pipeline(2, [4], "1f1b", 6, 3), 2, "float32", "AdamW"),
    ),
    "two linear layers, float64, momentum": Case(
        Net(features=2048, width=4096), 1024, precision="float64", optimizer="momentum"
    ),
    "digits 96 wide, BatchNorm, ddp, AdamW": Case(
        Digits(width=96), 1024, 1, DDP(), 2, optimizer="AdamW"
    ),
}


def predicted(case: Case) -> list[Footprint]:
    """Return what each process should take."""
    with torch.device("meta"):
        model = case.task.model()
    work = case.work(model, World(size=case.processes))
    return predict(case.strategy, work, [case.batch("meta")] * case.rounds)


def measured(name: str) -> list[dict[str, int]]:
    """Return what each process took itself, and in tensors."""
    environment = {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "rank", name, f"{folder}/store"]
        ranks = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, env=environment)
            for rank in range({**FITTED, **HELD_OUT}[name].processes)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
    return [json.loads(output) for output in outputs]


def train(case: Case, rank: int, store: str) -> dict[str, int]:
    """Return what this process took."""
    with join(rank=rank, size=case.processes, store=store, device="cpu") as world:
        is_double = case.precision == "float64"
        warm_up(world.device, torch.float64 if is_double else torch.float32)
        base = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
        engine = case.strategy.start(case.work(case.strategy.construct(case.task.model), world))
        batches = [case.batch("cpu") for _ in range(case.rounds)]
        share = Share(batches, [1] * case.rounds, case.rounds)
        for _ in range(2):
            engine.train_step(share)
        taken = resident("VmHWM") - base
        del engine
        tracker = Tracker(world.device)
        with tracker:
            engine = case.strategy.start(case.work(case.strategy.construct(case.task.model), world))
            batches = [case.batch("cpu") for _ in range(case.rounds)]
            take_steps(engine, tracker, batches, 2)
        return {"process": taken, "tensors": tracker.peak}


def table(names: Sequence[str]) -> None:
    """Print a line for each device of each case."""
    say = sys.stdout.write
    say(f"{'predicted MB':>13} {'counted':>9} {'off':>7} {'needed':>9} {'process':>9} {'off':>7}\n")
    for name in names:
        start = perf_counter()
        ours = predicted({**FITTED, **HELD_OUT}[name])
        took_s = perf_counter() - start
        say(f"{name} (predicted in {took_s:.1f} s)\n")
        for own, found in zip(ours, measured(name), strict=True):
            tensors, process = found["tensors"], found["process"]
            say(
                f"{own.peak / MB:13.1f} {tensors / MB:9.1f} {own.peak / tensors - 1:+7.2%} "
                f"{own.need / MB:9.1f} {process / MB:9.1f} {own.need / process - 1:+7.1%}\n"
            )


def main(words: list[str]) -> None:
    """Print the table, or what one process took."""
    torch.set_num_threads(1)
    if words[:1] == ["rank"]:
        case = {**FITTED, **HELD_OUT}[words[1]]
        sys.stdout.write(json.dumps(train(case, int(words[3]), words[2])))
        return
    sets = {"fitted": list(FITTED), "held-out": list(HELD_OUT)}
    table([name for word in words or ["held-out"] for name in sets.get(word, [word])])


if __name__ == "__main__":
    main(sys.argv[1:])
