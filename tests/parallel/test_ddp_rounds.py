"""Rounds, clipping and skipping over two ranks, on numbers that can be added in the head."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from parallel import DDP, Objective, Outcome, Settings, Share


class Weight(nn.Module):
    """Its loss is w x: the gradient is the mean of x."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))


def product(model, batch):
    return Outcome((model.weight * batch).mean())


def start(world, loss=product, lr=0.1, **settings):
    make = lambda module: [SGD(module.parameters(), lr=lr)]  # noqa: E731 - two lines
    settings = Settings(precision="float64", **settings)
    return DDP().engine(Weight(), make, Objective(loss, loss), settings, world)


def reduce_once(world):
    engine = start(world)
    batches = [[1.0], [3.0]] if world.rank == 0 else [[7.0], [11.0]]
    engine.train_step(Share([torch.tensor(b).double() for b in batches], [1, 1], 4))
    assert engine.module.weight.grad.item() == 5.5


def test_C7_both_rounds_of_both_ranks_are_in_the_gradient(in_ranks):
    in_ranks(2, reduce_once)


def product_unless_negative(model, batch):
    if batch.min() < 0:
        raise ValueError("a bad sample")
    return product(model, batch)


def fail_in_a_round(world):
    engine = start(world, product_unless_negative)
    good, bad = torch.tensor([2.0 + world.rank]).double(), torch.tensor([-1.0])
    for place in (0, 1):  # in a round without reduction, then in the last
        batches = [good, good]
        batches[place] = bad
        with pytest.raises(ValueError, match="a bad sample"):
            engine.train_step(Share(batches, [1, 1], 4))
        engine.train_step(Share([good], [1], 2))
        assert engine.module.weight.grad.item() == 2.5


def test_C8_after_an_error_within_a_round_gradients_are_reduced_again(in_ranks):
    in_ranks(2, fail_in_a_round)


def clip(world):
    engine = start(world, lr=1.0, clip_norm=1.0)
    result = engine.train_step(Share([torch.tensor([3.0 + 2 * world.rank]).double()], [1], 2))
    assert result.grad_norm == 4.0
    assert engine.module.weight.item() == pytest.approx(-1.0)


def test_clipping_is_by_the_norm_of_the_global_gradient(in_ranks):
    in_ranks(2, clip)


def one_rank_is_not_finite(world):
    engine = start(world)
    for value, skipped in ((float("nan"), True), (float("inf"), True), (1.0, False)):
        own = torch.tensor([value if world.rank == 1 else 1.0]).double()
        before = engine.module.weight.item()
        result = engine.train_step(Share([own], [1], 2))
        assert bool(result.skipped) is skipped
        assert (engine.module.weight.item() == before) is skipped


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_all(in_ranks):
    in_ranks(2, one_rank_is_not_finite)
