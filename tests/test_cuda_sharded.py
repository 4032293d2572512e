"""What only several GPUs can show of a divided model: the same numbers, offloaded or not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from parallel import FSDP, Objective, Outcome, Settings, Share, Single, World

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")]
X = torch.linspace(-1, 2, 60).reshape(12, 5).double().sin()


def model():
    torch.manual_seed(0)
    layers = [nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3)]
    return nn.Sequential(*layers)


def squares(module, batch):
    return Outcome((module(batch) ** 2).mean())


def fused(module):
    return [AdamW(module.parameters(), lr=0.01, fused=True)]


def start(world, strategy, **settings):
    return strategy.engine(
        model(),
        fused,
        Objective(squares, squares),
        Settings(**{"precision": "float64", "clip_norm": 0.1, **settings}),
        world,
    )


def agrees(world, keys):
    assert world.device.type == "cuda"
    engine = start(world, FSDP(**keys))
    plain = start(World(device=world.device), Single())
    own = X.to(world.device).tensor_split([7])[world.rank]
    for _ in range(5):
        result = engine.train_step(Share([own], [len(own)], 12))
        alone = plain.train_step(Share([X.to(world.device)], [12], 12))
        assert float(result.grad_norm) == pytest.approx(float(alone.grad_norm), rel=1e-9)
    right = plain.module.state_dict()
    for name, tensor in engine.state().model.items():
        assert (tensor - right[name].cpu()).abs().max() < 1e-9
    [outcome] = engine.evaluate([(own, len(own))])
    assert outcome.loss.isfinite()
    engine.load(plain.state())


@pytest.mark.parametrize(
    "keys",
    [{}, {"cpu_offload": True}, {"reshard_after_forward": False}, {"checkpoint_every": 1}],
    ids=str,
)
def test_gpus_give_the_numbers_of_one(in_ranks, keys):
    in_ranks(2, agrees, keys)


def learns(world, keys, precision):
    engine = start(world, FSDP(**keys), precision=precision)
    own = X.float().to(world.device).tensor_split([7])[world.rank]
    losses = [float(engine.train_step(Share([own], [len(own)], 12)).outcomes[0].loss)]
    for _ in range(30):
        losses.append(float(engine.train_step(Share([own], [len(own)], 12)).outcomes[0].loss))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("keys", "precision"),
    [({"mixed_precision": True}, "float32"), ({}, "bfloat16"), ({}, "float16")],
    ids=str,
)
def test_low_precisions_train(in_ranks, keys, precision):
    in_ranks(2, learns, keys, precision)


def waits_for_nothing(world):
    engine = start(world, FSDP())
    own = X.to(world.device).tensor_split([7])[world.rank]
    for _ in range(2):
        engine.train_step(Share([own], [len(own)], 12))
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = engine.train_step(Share([own], [len(own)], 12))  # raises where it would wait
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not bool(result.skipped)


def test_a_step_waits_for_nothing(in_ranks):
    in_ranks(2, waits_for_nothing)
