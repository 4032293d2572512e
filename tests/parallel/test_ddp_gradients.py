"""Two ranks' shares of a batch give the gradient of plain autograd on the whole batch."""

from copy import deepcopy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from parallel import DDP, Objective, Outcome, Settings, Share

X = torch.linspace(-1, 2, 21).reshape(7, 3).double()
Y = X.sum(1, keepdim=True).sin()


class Net(nn.Module):
    """What the subclasses change is the way from inputs to outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.first(x).tanh())


class Stepping(Net):
    """C12: the task calls a method of the model's own."""

    def training_step(self, batch):
        x, y = batch
        return ((self(x) - y) ** 2).mean()


class Buffered(Net):
    """C16: a buffer is part of the math; the rest of training is wrong if it is written to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 3.0))

    def forward(self, x):
        return self.last((self.first(x) * self.scale).tanh())


class Checkpointed(Net):
    """C20: a checkpointed block whose weight is used outside it too."""

    def forward(self, x):
        hidden = checkpoint(self.block, x, use_reentrant=False)
        return self.last((hidden + self.first(x)).tanh())

    def block(self, x):
        return self.first(x).sin()


class Losing(Net):
    """A22: the loss in training mode, predictions in evaluation mode."""

    def forward(self, x, y=None):
        found = super().forward(x)
        return ((found - y) ** 2).mean() if self.training else found


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.first(x).tanh()).sum(1, keepdim=True)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 1, dtype=torch.complex128))
        self.real = nn.Parameter(torch.randn(1))

    def forward(self, x):
        return (x.to(self.weight.dtype) @ self.weight).abs() + self.real


def squares(model, batch):
    x, y = batch
    return Outcome(((model(x) - y) ** 2).mean())


def stepping(model, batch):
    return Outcome(model.training_step(batch))


def twice(model, batch):
    x, y = batch
    return Outcome(((model(x) + model(x.flip(1)) - y) ** 2).mean())


def losing(model, batch):
    assert model.training
    return Outcome(model(*batch))


def predicting(model, batch):
    assert not model.training
    return squares(model, batch)


def tokens(model, batch):
    """C11: the mean over 1 token of the first sample, 2 of the second ..., not over samples."""
    x, y = batch
    weight = (x[:, 0] * 2 + 3).round()
    each = ((model(x) - y) ** 2).squeeze(1)
    return Outcome((each * weight).sum() / weight.sum(), weight.sum())


def share(world, rounds=1):
    """Return rank 0's first 2 samples of 7 and rank 1's others, in ``rounds``."""
    own = slice(0, 2) if world.rank == 0 else slice(2, 7)
    batches = list(zip(X[own].chunk(rounds), Y[own].chunk(rounds), strict=True))
    return Share(batches, [len(x) for x, _ in batches], 7)


def start(world, model, loss=squares, evaluate=squares):
    return DDP().engine(
        model,
        lambda module: [SGD(module.parameters(), lr=0.1)],
        Objective(loss, evaluate),
        Settings(precision="float64"),
        world,
    )


def gradients_agree(world, kind, loss, rounds):
    torch.manual_seed(0)
    model = kind()
    plain = deepcopy(model).double()
    loss(plain, (X, Y)).loss.backward()
    engine = start(world, model, loss, predicting)
    for _ in range(2):  # nothing of the first step is left over in the second
        result = engine.train_step(share(world, rounds))
        engine.module.load_state_dict(plain.state_dict())
    for (name, own), expected in zip(
        engine.module.named_parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(own.grad, expected.grad, rtol=1e-12, atol=1e-14, msg=name)
    norm = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()])
    assert float(result.grad_norm) == pytest.approx(norm.item(), rel=1e-12)
    [outcome] = engine.evaluate([((X, Y), 7)])
    torch.testing.assert_close(outcome.loss, squares(plain.eval(), (X, Y)).loss.detach())


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        pytest.param(Net, squares, id="C10"),
        pytest.param(Net, tokens, id="C11 weights"),
        pytest.param(Stepping, stepping, id="C12 a method of the model"),
        pytest.param(Buffered, twice, id="C16 two forwards, one backward"),
        pytest.param(Checkpointed, squares, id="C20 a checkpointed block"),
        pytest.param(Losing, losing, id="A22 the model returns its loss"),
        pytest.param(Tied, squares, id="tied weights"),
        pytest.param(Complex, squares, id="complex parameters"),
    ],
)
def test_C10_C11_C12_C16_C20_A22_gradient_and_norm_are_those_of_the_whole_batch(
    in_ranks, kind, loss
):
    in_ranks(2, gradients_agree, kind, loss, 2)


def count_reductions(world):
    engine, seen = start(world, Net()), []

    def hook(state, bucket):
        state.append(bucket.index())
        return allreduce_hook(dist.group.WORLD, bucket)

    engine.wrapped.register_comm_hook(seen, hook)
    batches = [(X[i : i + 1], Y[i : i + 1]) for i in range(4)]
    for _ in range(2):
        engine.train_step(Share(batches, [1] * 4, 8))
    assert len(seen) == 2


def test_C6_eight_rounds_of_two_steps_are_reduced_twice(in_ranks):
    in_ranks(2, count_reductions)
