import pytest
import torch
from torch import nn
from torch.optim import SGD

from parallel import DataParallel, Objective, Outcome, Settings, Share, Single, UsageError
from parallel.data_parallel import PartLoss, Scattered
from parallel.single import TrainingLoss

X = torch.linspace(-1, 2, 10).reshape(5, 2)
WEIGHTS = torch.tensor([1.0, 4.0, 2.0, 0.0, 3.0])


def net():
    torch.manual_seed(0)
    return nn.Linear(2, 1)


def squares(model, batch):
    each = (model(batch["x"]) ** 2).squeeze(1)
    return Outcome(each.mean(), None, {"each": each.detach(), "half": each.detach().mean() / 2})


def weighted(model, batch):
    each, weights = (model(batch["x"]) ** 2).squeeze(1), batch["weights"]
    return Outcome((each * weights).sum() / weights.sum(), weights.sum())


def test_C26_several_processes_are_refused():
    with pytest.raises(UsageError, match="'data_parallel' trains in one process, but 2 were"):
        DataParallel().check(2)


def test_C26_on_a_cpu_it_runs_as_single_and_says_so(alone):
    def engine(strategy):
        make = lambda module: [SGD(module.parameters(), lr=0.1)]  # noqa: E731 - two lines
        return strategy.engine(net(), make, Objective(squares, squares), Settings(), alone)

    found, expected = engine(DataParallel()), engine(Single())
    [notice] = found.notices
    assert notice == "data_parallel has 0 GPUs to divide a batch over; it runs as single"
    for _ in range(3):
        share = Share([{"x": X}], [5], 5)
        own, other = found.train_step(share), expected.train_step(share)
        assert own.outcomes[0].loss.shape == ()
        assert own.outcomes[0].loss.equal(other.outcomes[0].loss)
        assert own.grad_norm == other.grad_norm
    assert found.state().model["weight"].equal(expected.state().model["weight"])


class Parts(nn.Module):
    """What nn.DataParallel does on two GPUs, of 3 and 2 samples, done on the CPU."""

    def __init__(self, loss):
        super().__init__()
        self.part = PartLoss(loss)

    def forward(self, batch):
        slices = (slice(0, 3), slice(3, 5))
        found = [self.part({name: value[own] for name, value in batch.items()}) for own in slices]
        columns = list(zip(*found, strict=True))
        metrics = {name: torch.cat([m[name] for m in columns[3]]) for name in columns[3][0]}
        return *(torch.cat(column) for column in columns[:3]), metrics


@pytest.mark.parametrize("ask", [squares, weighted])
def test_C26_parts_of_unequal_weight_make_one_scalar_the_mean_of_the_whole(ask):
    loss = TrainingLoss(net(), Objective(ask, ask))
    scattered = Scattered(loss, [])
    scattered.parts = Parts(loss)
    batch = {"x": X, "weights": WEIGHTS}
    found, weight, metrics = scattered(batch)
    expected, whole, known = loss(batch)
    assert found.shape == ()
    torch.testing.assert_close(found, expected)
    assert (weight is None) == (whole is None)
    torch.testing.assert_close(metrics, known)


def test_C26_a_batch_without_tensors_is_refused():
    def loss(model, batch):
        return Outcome(model.weight.sum())

    part = PartLoss(TrainingLoss(net(), Objective(loss, loss)))
    with pytest.raises(UsageError, match="divides tensors, and this batch has none"):
        part({"words": "abc"})
