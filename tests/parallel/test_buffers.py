"""What training and evaluation may do to buffers and modes, and what they may not."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from parallel import DDP, Objective, Outcome, Settings, Share, Single, World


class Normed(nn.Module):
    """Batch statistics, a buffer written in place and one that is replaced."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(2), nn.Linear(2, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += len(x)
            self.average = 0.9 * self.average + 0.1 * x.detach().mean()
        return self.last(self.norm(x))


class NormOnly(nn.Sequential):
    def __init__(self):
        super().__init__(nn.BatchNorm1d(2), nn.Linear(2, 1))


def loss(model, batch):
    return Outcome((model(batch) ** 2).mean())


def start(world, model, strategy, evaluate=loss):
    return strategy.engine(
        model,
        lambda module: [SGD(module.parameters(), lr=0.1)],
        Objective(loss, evaluate),
        Settings(),
        world,
    )


def copied(module):
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def assert_alike(found, expected):
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)


def agree_before_evaluation(world, kind):
    torch.manual_seed(0)
    during = []

    def evaluate(model, batch):
        during.append(copied(model))
        return loss(model, batch)

    engine = start(world, kind(), DDP(), evaluate)
    for step in range(3):  # the ranks' data have nothing in common
        x = torch.randn(4, 2, generator=torch.Generator().manual_seed(step)) + 50 * world.rank
        engine.train_step(Share([x], [4], 8))
    own = copied(engine.module)
    of_rank_0 = world.gather_objects(own)[0]
    if kind is NormOnly and world.rank:
        assert not own["0.running_mean"].equal(of_rank_0["0.running_mean"]), "nothing to agree on"
    if world.rank == 0:
        engine.evaluate([(x, 4)])
    else:
        engine.evaluate([])  # a rank without a batch takes part all the same
    engine.evaluate([(x, 4)])
    assert_alike(during[-1], of_rank_0)
    assert_alike(copied(engine.module), of_rank_0)
    held = engine.state().model
    assert_alike({name: held[name] for name in of_rank_0}, of_rank_0)


@pytest.mark.parametrize("kind", [NormOnly, Normed])
def test_C17_buffers_are_rank_0s_on_all_ranks_at_evaluation_and_in_the_state(in_ranks, kind):
    in_ranks(2, agree_before_evaluation, kind)


def agree_before_saving(world):
    engine = start(world, NormOnly(), DDP())
    engine.train_step(Share([torch.randn(4, 2) + 50 * world.rank], [4], 8))
    held = engine.state().model["0.running_mean"]
    assert held[0].item() < 5, "not rank 0's"
    rows = world.gather(held)
    assert rows[0].equal(rows[1])


def test_C17_buffers_agree_when_the_state_is_asked_for_first(in_ranks):
    in_ranks(2, agree_before_saving)


def borrow(world, strategy):
    engine = start(world, Normed(), strategy)
    x, before = torch.randn(3, 2), copied(engine.module)
    poison = torch.full((3, 2), float("nan"))
    result = engine.train_step(Share([poison], [0], 8))
    assert_alike(copied(engine.module), before)
    assert all(p.grad.eq(0).all() for p in engine.module.parameters())
    assert (result.grad_norm, bool(result.skipped)) == (0.0, False)
    assert [float(o.weight) for o in result.outcomes] == [0.0]
    engine.train_step(Share([x], [3], 3 * world.size))
    assert engine.module.seen == 3


@pytest.mark.parametrize(("strategy", "processes"), [(Single(), 1), (DDP(), 2)])
def test_a_borrowed_batch_changes_no_buffer_and_no_gradient(in_ranks, strategy, processes):
    in_ranks(processes, borrow, strategy)


def borrow_on_one_rank(world):
    torch.manual_seed(0)
    engine = start(world, NormOnly(), DDP())
    x = torch.randn(3, 2)
    alone = start_alone(engine.module)
    engine.train_step(Share([x], [0 if world.rank else 3], 3))
    alone.train_step(Share([x], [3], 3))
    for own, expected in zip(engine.module.parameters(), alone.module.parameters(), strict=True):
        torch.testing.assert_close(own, expected)
    moved = engine.module[0].num_batches_tracked.item()
    assert moved == (0 if world.rank else 1)


def start_alone(module):

    twin = NormOnly()
    twin.load_state_dict(module.state_dict())
    return start(World(), twin, Single())


def test_a_step_that_one_rank_borrows_is_the_others_alone(in_ranks):
    in_ranks(2, borrow_on_one_rank)


@pytest.mark.parametrize("fails", [False, True])
def test_each_part_keeps_its_mode_over_an_evaluation(alone, fails):
    def evaluate(model, batch):
        assert not any(part.training for part in model.modules())
        assert not torch.is_grad_enabled()
        if fails:
            raise ValueError("boom")
        return loss(model, batch)

    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 1))
    model[0].eval()  # frozen by the user
    engine = start(alone, model, Single(), evaluate)
    if fails:
        with pytest.raises(ValueError, match="boom"):
            engine.evaluate([(torch.randn(4, 2), 4)])
    else:
        engine.evaluate([(torch.randn(4, 2), 4)])
    modes = {name: part.training for name, part in engine.module.named_modules()}
    assert modes == {"": True, "0": False, "0.0": False, "0.1": False, "1": True}
    assert all(p.grad is None for p in engine.module.parameters())


def test_evaluation_moves_no_running_statistics(alone):
    engine = start(alone, Normed(), Single())
    before = copied(engine.module)
    engine.evaluate([(torch.randn(4, 2), 4)])
    assert_alike(copied(engine.module), before)


class Expanded(Normed):
    """One number seen as several, under two names."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(1).expand(2))
        self.last.register_buffer("same", self.scale, persistent=False)

    def forward(self, x):
        return super().forward(x * self.scale)


@pytest.mark.parametrize("strategy", [Single(), DDP()])
def test_a_buffer_of_one_number_many_times_trains_and_takes_its_state_back(alone, strategy):
    engines = [start(alone, Expanded(), strategy) for _ in range(2)]
    share = Share([torch.arange(8.0).view(4, 2)], [4], 4)
    engines[0].train_step(share)
    with torch.no_grad():
        engines[0].module.scale[1] = 3.0
    engines[1].load(engines[0].state())
    module = engines[1].module
    assert module.scale.tolist() == [1.0, 3.0]
    assert module.last.same is module.scale
    assert "last.same" not in module.state_dict()
    engines[1].train_step(share)
