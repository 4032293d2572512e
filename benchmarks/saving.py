"""What a checkpoint costs training: none, written at once, and written in the background.

    python benchmarks/saving.py [rounds [image_size]]

One process of one thread trains the autoencoder at its full width: 151 MB of model and optimizer.
In each turn the same training goes on with another way of saving, which comes before its steps.
Printed for each way: what training waited at the save, how long the next step took, how much more
processor time the turn needed than one without a save, and, from a process of its own each, the
most memory. Processor time is told besides time because it does not depend on what else runs.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, thread_time

import torch

from launch.checkpoint import Order, Writer
from launch.data import loader
from launch.objective import objective
from launch.tasks.autoencoder import Autoencoder
from parallel import Engine, Settings, Share, Single, World

STEPS = 2  # in a turn
WAYS = ("none", "at once", "background")


@dataclass(frozen=True)
class Turn:
    """What one way of saving cost once; cpu: processor time."""

    waited_s: float
    waited_cpu_s: float
    next_step_s: float
    cpu_s: float  # of all threads, to the end of the turn
    whole_s: float


@dataclass
class Bench:
    """An engine that trains on, whatever is saved."""

    engine: Engine
    share: Share
    writers: dict[str, Writer]
    step: int = 0

    def turn(self, way: str) -> Turn:
        """Save in one way, then train."""
        writer, whole = self.writers.get(way), 0.0
        start, own, everything = perf_counter(), thread_time(), process_time()
        if writer is not None:
            held = self.engine.state()
            state = {"optimizers": held.groups, "scaler": held.scaler}
            writer.write(Order(self.step, 0, held.model, held.optimizer, state))
        waited, waited_cpu = perf_counter() - start, thread_time() - own
        times = [self.train() for _ in range(STEPS)]
        if writer is not None:
            writer.wait()
            [written] = writer.finished()
            if written.error:
                raise written.error
            whole = written.seconds
        return Turn(waited, waited_cpu, times[0], process_time() - everything, whole)

    def train(self) -> float:
        """Return the seconds of one step."""
        start = perf_counter()
        self.engine.train_step(self.share)
        self.step += 1
        return perf_counter() - start


def bench(folder: Path, size: int) -> Bench:
    """Return the full-width autoencoder, with one writer for each way that saves."""
    task, world = Autoencoder(image_size=size, samples=4), World()
    torch.manual_seed(0)
    engine = Single().engine(
        task.model(),
        lambda model: [torch.optim.Adam(model.parameters(), lr=1e-4)],
        objective(task),
        Settings(),
        world,
    )
    shares = loader(task.datasets()["train"], world, global_batch_size=1)
    share = next(iter(shares.epoch(0, 0, engine.phases)))
    writers = {way: Writer(folder / way, 2, asynchronous=way == WAYS[2]) for way in WAYS[1:]}
    return Bench(engine, share, writers)


def peak_mib(way: str, size: int) -> float:
    """Return the most memory of a process that saves twice in one way."""
    command = [sys.executable, __file__, "peak", way, str(size)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)


def measure(rounds: int, size: int) -> dict[str, list[Turn]]:
    """Return the turns of each way, taken by turns; the first of each warms up."""
    turns: dict[str, list[Turn]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        ours = bench(Path(folder), size)
        for _ in range(rounds + 1):
            for way in WAYS:
                turns[way].append(ours.turn(way))
        for writer in ours.writers.values():
            writer.close()
    return {way: found[1:] for way, found in turns.items()}


def line(way: str, turns: list[Turn], base: list[Turn], peak: float) -> str:
    """Return one line of the table."""
    more = median(a.cpu_s - b.cpu_s for a, b in zip(turns, base, strict=True))
    step = median(turn.next_step_s for turn in base)
    step_cpu = median(turn.cpu_s for turn in base) / STEPS
    waited_cpu = median(turn.waited_cpu_s for turn in turns)
    waited, whole = (median(getattr(t, n) for t in turns) * 1e3 for n in ("waited_s", "whole_s"))
    after = median(t.next_step_s for t in turns) * 1e3
    return (
        f"{way:11} waited {waited:5.0f} ms, {waited_cpu * 1e3:4.0f} ms of a processor "
        f"({waited_cpu / step_cpu:5.1%} of a step's)   next step {after:5.0f} ms "
        f"(plain {step * 1e3:.0f})   all threads {more * 1e3:+5.0f} ms ({more / step_cpu:+.1%})   "
        f"whole after {whole:5.0f} ms   peak {peak:5.0f} MiB"
    )


def main(words: list[str]) -> None:
    """Print the table, or one process's memory."""
    torch.set_num_threads(1)
    if words[:1] == ["peak"]:
        with tempfile.TemporaryDirectory() as folder:
            ours = bench(Path(folder), int(words[2]))
            for _ in range(2):
                ours.turn(words[1])
            for writer in ours.writers.values():
                writer.close()
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        sys.stdout.write(f"{most}\n")
        return
    rounds, size = int(words[0]) if words else 7, int(words[1]) if words[1:] else 64
    turns = measure(rounds, size)
    for way in WAYS:
        sys.stdout.write(line(way, turns[way], turns["none"], peak_mib(way, size)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
