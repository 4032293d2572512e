"""Every strategy, at every number of processes, trains as one process does: proved in float64."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from launch.data import EvaluationBatches, Transfer, loader
from launch.evaluation import combine
from launch.objective import objective
from launch.task import Task
from launch.tasks.digits import Digits
from parallel import DDP, Outcome, Settings, Single, Strategy, World, sums

SAMPLES, BATCH, STEPS = 23, 7, 12  # no process count from 2 to 4 divides either


@dataclass
class Uneven(Task):
    """A classifier on a set that nothing divides; ``weighted``: a weight that each batch tells."""

    weighted: bool = False
    samples: int = SAMPLES

    def datasets(self):
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(self.samples, 6, generator=generator)
        targets = (inputs.sum(1) > 0).long()
        weights = torch.arange(self.samples) % 4  # some samples weigh nothing
        return {"train": TensorDataset(inputs, targets, weights)}

    def model(self):
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def loss(self, model, batch):
        inputs, targets, weights = batch
        each = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        right = model(inputs).argmax(1) == targets
        if self.weighted:
            return {
                "loss": (each * weights).sum() / weights.sum(),  # NaN where all weights are 0
                "weight": weights.sum(),
                "accuracy": right,
            }
        return {"loss": each.mean(), "accuracy": right}


def train(world: World, strategy: Strategy, accumulate: int, weighted: bool, precision: str, steps):
    """Return gradients of the first step, the losses, and the last parameters."""
    torch.manual_seed(0)
    task = Uneven(weighted=weighted)
    engine = strategy.engine(
        task.model(),
        lambda model: [SGD(model.parameters(), lr=0.3, momentum=0.9)],
        objective(task),
        Settings(precision=precision, clip_norm=0.5),
        world,
    )
    shares = loader(
        task.datasets()["train"],
        world,
        BATCH,
        accumulate=accumulate,
        replicas=strategy.replicas(world),
        double=precision == "float64",
    )
    losses, gradients, epoch = [], None, 0
    while len(losses) < steps:
        for share in shares.epoch(epoch, 0, engine.phases):
            result = engine.train_step(share)
            loss = torch.stack([torch.as_tensor(x) for x in sums(result.outcomes)["loss"]])
            total, weight = world.sum(loss.double()).tolist()
            losses.append(total / weight)
            if gradients is None:
                gradients = [p.grad.double().flatten() for p in engine.module.parameters()]
                gradients = torch.cat(gradients).tolist()
        epoch += 1
    last = torch.cat([p.detach().double().flatten() for p in engine.module.parameters()])
    return {"gradients": gradients, "losses": losses[:steps], "last": last.tolist()}


def save(world, strategy, accumulate, weighted, precision, steps, path):
    found = train(world, strategy, accumulate, weighted, precision, steps)
    rows = world.gather(torch.tensor(found["last"], dtype=torch.float64))
    assert (rows == rows[0]).all(), "replicas differ"
    if world.is_main:
        path.write_text(json.dumps(found))


def largest_difference(a, b):
    a, b = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
    return ((a - b).abs().max() / b.abs().max()).item()


WAYS = [(DDP(), 1, 1), (DDP(), 2, 1), (DDP(), 3, 1), (DDP(), 4, 1), (Single(), 1, 2), (DDP(), 2, 2)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("strategy", "processes", "accumulate"), WAYS)
def test_gradients_losses_and_parameters_are_those_of_one_process(
    in_ranks, alone, tmp_path, strategy, processes, accumulate, weighted
):
    expected = train(alone, Single(), 1, weighted, "float64", STEPS)
    path = tmp_path / "found.json"
    in_ranks(processes, save, strategy, accumulate, weighted, "float64", STEPS, path)
    found = json.loads(path.read_text())
    assert largest_difference(found["gradients"], expected["gradients"]) < 1e-12
    assert largest_difference(found["losses"], expected["losses"]) < 1e-9
    assert largest_difference(found["last"], expected["last"]) < 1e-9


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_float32_losses_agree_over_thirty_steps(in_ranks, alone, tmp_path, processes):
    expected = train(alone, Single(), 1, False, "float32", 30)
    path = tmp_path / "found.json"
    in_ranks(processes, save, DDP(), 1, False, "float32", 30, path)
    found = json.loads(path.read_text())
    assert largest_difference(found["losses"], expected["losses"]) < 1e-4


def test_B6_the_mean_is_over_samples_not_over_batches_or_ranks(in_ranks):
    in_ranks(2, mean_of_ids)


def evaluate(world, samples, size):
    """Return metrics and count of an evaluation whose loss is the mean of the samples' numbers."""
    task, numbers = Uneven(), torch.arange(samples, dtype=torch.float64)
    torch.manual_seed(0)
    engine = DDP().engine(
        task.model(),
        lambda model: [SGD(model.parameters(), lr=0.1)],
        objective(task),
        Settings(precision="float64"),
        world,
    )
    table = torch.stack([numbers.sin(), numbers.cos(), *[numbers / 7] * 4], 1)
    dataset = TensorDataset(table, numbers.long() % 2, numbers)
    split = EvaluationBatches(dataset, size, world.size, world.rank, Transfer(world.device))
    outcomes = engine.evaluate(split)
    return combine(outcomes, sum(count for _, count in split), world)


def evaluate_all(world, path):
    found = {f"{n} {b}": evaluate(world, n, b) for n in range(1, 10) for b in range(1, 5)}
    if world.is_main:
        path.write_text(json.dumps(found))


@pytest.mark.parametrize("processes", [2, 3])
def test_B5_A16_evaluation_is_identical_for_any_number_of_processes(
    in_ranks, alone, tmp_path, processes
):
    path = tmp_path / "found.json"
    in_ranks(processes, evaluate_all, path)
    found = json.loads(path.read_text())
    for key, (metrics, samples) in found.items():
        n, b = map(int, key.split())
        assert samples == n
        assert (metrics, samples) == tuple(evaluate(alone, n, b)), key


def mean_of_ids(world):
    batches = [torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0]), torch.tensor([4.0])]
    own = [Outcome(ids.mean(), float(len(ids))) for ids in batches[world.rank :: world.size]]
    metrics, samples = combine(own, [3, 2][world.rank], world)
    assert (metrics["loss"], samples) == (2.0, 5)


@dataclass
class NumberedDigits(Digits):
    """The digits, with the numbers of the samples in each step written down on each rank."""

    def __post_init__(self):
        self.numbers = []

    def datasets(self):
        found = super().datasets()
        train = found["train"].tensors
        return {**found, "train": TensorDataset(*train, torch.arange(len(train[0])))}

    def loss(self, model, batch):
        if model.training:
            self.numbers += batch[2].tolist()
        return super().loss(model, batch)

    def after_step(self, context):
        with Path(f"samples-{os.environ.get('RANK', 0)}.txt").open("a") as file:
            file.write(" ".join(map(str, [context.step, *self.numbers])) + "\n")
        self.numbers.clear()


DIGITS = (
    "task._target_=tests.test_agreement.NumberedDigits",
    "task.width=4",
    "task.batch_norm=false",
    "train.precision=float64",
    "train.epochs=3",
    "log.every_steps=1",
    "log.progress=none",
)
DIGITS_STEPS = 69  # 1,437 samples in batches of 64: 23 an epoch, the last of 29


def trained(train, folder, legs):
    """Train by (processes, last step); return each step's samples and loss, and the weights."""
    for processes, last in legs:
        words = (f"name={folder.name}", f"train.max_steps={last}")
        ended = train(*DIGITS, *words, processes=processes)
        assert ended.codes == [0] * processes, ended.output
    samples = {}
    for path in folder.parents[1].glob("samples-*.txt"):
        for line in path.read_text().splitlines():
            step, *numbers = map(int, line.split())
            samples.setdefault(step, []).extend(numbers)
        path.unlink()
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    losses = {row["step"]: row["loss"] for row in rows if row["event"] == "step"}
    weights = sorted(load_file(folder / "checkpoints/last/model.safetensors").items())
    assert {weight.dtype for _, weight in weights} == {torch.float64}
    flat = torch.cat([weight.flatten() for _, weight in weights]).tolist()
    return {step: sorted(numbers) for step, numbers in samples.items()}, losses, flat


def test_resumed_on_other_numbers_of_processes_a_run_is_that_of_one(train, tmp_path):
    stops = sorted(random.Random(1).sample(range(1, DIGITS_STEPS), 3))
    legs = zip((2, 1, 3, 2), (*stops, DIGITS_STEPS), strict=True)
    expected = trained(train, tmp_path / "runs/straight", [(1, DIGITS_STEPS)])
    found = trained(train, tmp_path / "runs/again", legs)
    assert found[0] == expected[0], stops
    assert [len(numbers) for _, numbers in sorted(found[0].items())] == [*[64] * 22, 29] * 3
    steps = range(1, DIGITS_STEPS + 1)
    losses, wanted = ([run[1][step] for step in steps] for run in (found, expected))
    assert largest_difference(losses, wanted) < 1e-9, stops
    assert largest_difference(found[2], expected[2]) < 1e-9, stops
