"""What only a GPU can show: the same numbers there, and no wait in a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from launch.schedule import Schedule
from parallel import DataParallel, Objective, Outcome, Settings, Share, Single, World, sums
from parallel.agreement import differing, fingerprint
from tests.test_agreement import largest_difference

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not GPUS, reason="needs a GPU")]
several = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def judged(module, batch):
    outputs = module(batch[0])
    loss = nn.functional.cross_entropy(outputs, batch[1])
    return Outcome(loss, None, {"accuracy": outputs.argmax(1) == batch[1]})


def engine(strategy, device, poison=False, **settings):
    def loss(module, batch):
        said = judged(module, batch)
        return Outcome(said.loss * float("nan"), None, said.metrics) if poison else said

    world = World(device=torch.device(device))
    return strategy.engine(
        model(),
        lambda module: [SGD(module.parameters(), lr=0.3, fused=True)],
        Objective(loss, judged),
        Settings(**settings),
        world,
    )


def steps(at_work, device, dtype=torch.float64, count=5):
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(count):
        x = torch.randn(10, 6, generator=generator, dtype=torch.float64)
        batch = [x.to(device, dtype), (x.sum(1) > 0).long().to(device)]
        result = at_work.train_step(Share([batch], [10], 10))
        total, weight = sums(result.outcomes)["loss"]
        losses.append(float(total) / float(weight))
    return losses


def test_a_gpu_gives_the_numbers_of_the_cpu():
    expected = steps(engine(Single(), "cpu", precision="float64"), "cpu")
    found = steps(engine(Single(), "cuda", precision="float64"), "cuda")
    assert largest_difference(found, expected) < 1e-9


@several
def test_data_parallel_gives_the_numbers_of_one_gpu():
    expected = steps(engine(Single(), "cuda", precision="float64"), "cuda")
    found = steps(engine(DataParallel(), "cuda", precision="float64"), "cuda")
    assert largest_difference(found, expected) < 1e-9


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_low_precisions_train(precision):
    losses = steps(engine(Single(), "cuda", precision=precision), "cuda", torch.float32, 30)
    assert losses[-1] < losses[0]


def test_a_step_waits_for_nothing():
    at_work = engine(Single(), "cuda", clip_norm=1.0)
    batch = [torch.randn(10, 6, device="cuda"), torch.zeros(10, dtype=torch.long, device="cuda")]
    at_work.train_step(Share([batch], [10], 10))
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = at_work.train_step(Share([batch], [10], 10))  # raises where it would wait
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not bool(result.skipped)


def test_a_skipped_step_changes_nothing_and_the_schedule_waits():
    at_work = engine(Single(), "cuda", poison=True)
    before = [p.clone() for p in at_work.module.parameters()]
    schedule = Schedule([torch.optim.lr_scheduler.StepLR(at_work.optimizers[0], 1)])
    batch = [torch.randn(10, 6, device="cuda"), torch.zeros(10, dtype=torch.long, device="cuda")]
    result = at_work.train_step(Share([batch], [10], 10))
    schedule.advance(result.skipped)
    schedule.settle()
    assert bool(result.skipped)
    assert all(torch.equal(a, b) for a, b in zip(before, at_work.module.parameters(), strict=True))
    assert at_work.optimizers[0].param_groups[0]["lr"] == 0.3


def test_fingerprints_are_those_of_the_cpu_and_take_one_wait():
    tensors = {str(n): torch.randn(n, n) for n in (1, 3, 40, 300)}
    there = {name: tensor.cuda() for name, tensor in tensors.items()}
    torch.cuda.set_sync_debug_mode("error")
    try:
        prints = [fingerprint(tensor) for tensor in there.values()]
        torch.cuda.set_sync_debug_mode("warn")
        with pytest.warns(UserWarning, match="synchroniz") as waits:
            assert differing(there, World(device=torch.device("cuda"))) == {}
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 1
    for found, tensor in zip(prints, tensors.values(), strict=True):
        assert found.cpu().equal(fingerprint(tensor))


def test_phases_are_measured_by_events():
    at_work = engine(Single(), "cuda")
    steps(at_work, "cuda", torch.float32)
    seconds = at_work.phases.seconds()
    assert seconds["forward"] > 0
    assert seconds["backward"] > 0
    assert seconds["optimizer"] > 0
