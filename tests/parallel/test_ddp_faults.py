import pytest
import torch
from torch import nn
from torch.optim import SGD

from parallel import DDP, Objective, Outcome, Settings, Share, UsageError, World


class Branches(nn.Module):
    """Only the branches in ``used`` take part."""

    def __init__(self, used):
        super().__init__()
        self.main, self.head, self.spare = (nn.Linear(2, 2) for _ in range(3))
        self.used = used

    def forward(self, x):
        return sum(getattr(self, name)(x).sum() for name in self.used)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 2, padding_idx=0, sparse=True)
        self.head = nn.Linear(2, 1)

    def forward(self, ids):
        return (self.head(self.table(ids)) ** 2).mean()


def loss(model, batch):
    return Outcome(model(batch))


def start(world, model, optimizer=SGD, **strategy):
    make = lambda module: [optimizer(module.parameters(), lr=0.1)]  # noqa: E731 - two lines
    return DDP(**strategy).engine(model, make, Objective(loss, loss), Settings(), world)


def step(engine, x, rounds=1):
    return engine.train_step(Share([x] * rounds, [1] * rounds, 2 * rounds))


X = torch.ones(1, 2)
NAMES = r"took no part in the loss: spare.weight, spare.bias; .*strategy.find_unused_parameters"


def unused_at_once(world):
    engine = start(world, Branches(("main", "head")))
    before = engine.module.main.weight.tolist()
    with pytest.raises(UsageError, match=NAMES):
        step(engine, X)
    assert engine.module.main.weight.tolist() == before, "replicas already differ"


def unused_later(world):
    for rounds in (1, 2):
        engine = start(world, Branches(("main", "head", "spare")))
        step(engine, X, rounds)
        engine.module.used = ("main", "head")
        with pytest.raises(UsageError, match=NAMES):
            step(engine, X, rounds)


def unused_and_allowed(world):
    engine = start(world, Branches(("main",)), find_unused_parameters=True)
    for _ in range(3):
        step(engine, X + world.rank)
        rows = world.gather(torch.cat([p.flatten() for p in engine.module.parameters()]))
        assert rows[0].equal(rows[1])
        engine.module.used = ("main", "spare") if world.rank else ("main", "head")


@pytest.mark.parametrize("body", [unused_at_once, unused_later, unused_and_allowed])
def test_C1_parameters_that_take_no_part_are_named_unless_that_is_allowed(in_ranks, body):
    in_ranks(2, body)


def test_C1_alone_unused_parameters_do_no_harm(alone):
    assert not step(start(alone, Branches(("main",))), X).skipped


def frozen(world):
    torch.manual_seed(world.rank)
    model = Branches(("main",)).requires_grad_(False)
    objective = Objective(loss, loss)
    engine = DDP().engine(model, lambda _: [], objective, Settings(), world)
    assert [o.weight for o in engine.evaluate([(X, 1)])] == [1.0]
    assert set(engine.state().model) == set(model.state_dict())
    engine.check_agreement()
    rows = world.gather(model.main.weight)
    assert all(row.equal(rows[0]) for row in rows), "not judged by the same weights"
    with pytest.raises(UsageError, match="does not depend on any trainable parameter"):
        step(engine, X, rounds=2)


@pytest.mark.parametrize("processes", [1, 2])
def test_C15_a_model_with_nothing_to_train_is_judged(in_ranks, processes):
    in_ranks(processes, frozen)


def unsynchronised(world):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Flatten(0))
    objective = Objective(mean, mean)
    make = lambda m: [SGD(m.parameters(), lr=0.1)]  # noqa: E731 - two lines
    engine = DDP(sync_batch_norm=True).engine(model, make, objective, Settings(), world)
    [notice] = engine.notices
    assert notice == "strategy.sync_batch_norm needs several GPUs; it is ignored here"
    engine.train_step(Share([torch.randn(3, 2)], [3], 3 * world.size))
    assert type(engine.module[1]) is nn.BatchNorm1d


def mean(model, batch):
    return Outcome((model(batch) ** 2).mean())


@pytest.mark.parametrize("processes", [1, 2])
def test_C18_sync_batch_norm_on_a_cpu_is_ignored_with_one_notice(in_ranks, processes):
    in_ranks(processes, unsynchronised)


def sparse(world):
    ids = torch.tensor([[1, 2, 1], [0, 0, 0]])
    torch.manual_seed(0)
    engine = start(world, Words())
    torch.manual_seed(0)
    reference = start(World(), Words())
    for _ in range(3):
        found = step(engine, ids[world.rank : world.rank + 1])
        expected = reference.train_step(Share([ids], [2], 2))
        assert float(found.grad_norm) == pytest.approx(float(expected.grad_norm), rel=1e-5)
        for own, other in zip(
            engine.module.parameters(), reference.module.parameters(), strict=True
        ):
            torch.testing.assert_close(own, other)


def test_C19_a_sparse_table_agrees_when_one_rank_has_padding_only(in_ranks):
    in_ranks(2, sparse)


def wider(world):
    return nn.Linear(3 + world.rank, 2)


def renamed(world):
    model = Branches(("main",))
    if world.rank == 1:
        model.tail = nn.Linear(2, 2)
    return model


def frozen_on_one(world):
    return nn.Linear(2, 2).requires_grad_(world.rank == 0)


def normed_on_one(world):
    return nn.BatchNorm1d(2, track_running_stats=world.rank > 0)


def cast_on_one(world):
    return nn.Linear(2, 2).to(torch.float32 if world.rank else torch.bfloat16)


def unlike(world, kind, words):
    with pytest.raises(UsageError, match="the ranks built different models: ") as caught:
        start(world, kind(world))
    assert f"models: {words}; build the model from" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (wider, "weight is [2, 3] float32 on rank 0, [2, 4] float32 on rank 1"),
        (renamed, "tail.weight is not there on rank 0, [2, 2] float32 on rank 1"),
        (frozen_on_one, "weight is [2, 2] float32 on rank 0, [2, 2] float32, frozen on rank 1"),
        (normed_on_one, "running_mean is not there on rank 0, [2] float32 on rank 1"),
        (cast_on_one, "weight is [2, 2] bfloat16 on rank 0, [2, 2] float32 on rank 1"),
    ],
)
def test_ranks_that_built_different_models_are_told_the_first_difference(in_ranks, kind, words):
    in_ranks(2, unlike, kind, words)
