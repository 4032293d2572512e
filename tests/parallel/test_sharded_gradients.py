"""Ranks that hold slices of a model give the gradients and the training of one process."""

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW

from parallel import FSDP, Objective, Outcome, Settings, Share, Single, World

X = torch.linspace(-1, 2, 60).reshape(12, 5).double().sin()
Y = X.sum(1, keepdim=True).cos()


class Blocks(nn.Module):
    """Blocks in a list, with parameters around them, one of them without dimensions."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(5, 4), nn.Linear(4, 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 3), nn.Tanh()) for _ in range(2))
        self.back = nn.ModuleList(nn.Linear(3, 4) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        hidden = self.enter(x)
        for block, back in zip(self.blocks, self.back, strict=True):
            hidden = hidden + self.scale * back(block(hidden))
        return self.leave(hidden)


class Tied(nn.Module):
    """Two layers of one weight, one of them in a block that is named."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5)
        self.last.weight = self.first.weight
        self.between = nn.ModuleList([nn.Linear(5, 5)])

    def forward(self, x):
        return self.last(self.between[0](self.first(x)).tanh()).sum(1, keepdim=True)


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 1)])
        self.layers[1].requires_grad_(False)
        self.layers[2].bias.requires_grad_(False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Turn(), nn.Linear(3, 1)])

    def forward(self, x):
        return self.layers[1](self.layers[0](x))


class Turn(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3, dtype=torch.complex128))

    def forward(self, x):
        return (x.to(self.weight.dtype) @ self.weight).abs()


class Recurrent(nn.Module):
    """A layer that keeps its weights in a list of its own, too."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 1)])

    def forward(self, x):
        return self.layers[1](self.layers[0](x.unsqueeze(2))[0][:, -1])


class InPlace(nn.Module):
    """Views leave the blocks and are written to; a block writes to what it is given."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 4), Writing(), nn.Linear(4, 1)])

    def forward(self, x):
        hidden = self.layers[0](x.reshape(len(x), 1, 5))
        hidden = self.layers[1](hidden.mul_(1.5))
        hidden *= 2
        return self.layers[2](hidden.relu_().clone()).flatten(1)


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x.mul_(3)).unsqueeze(1).squeeze(1)


def chain():
    layers = [nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), nn.LayerNorm(3), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(3, 1))


def transposed():
    """A parameter whose memory is in another order than its shape."""
    model = chain()
    model[0].weight = nn.Parameter(torch.randn(5, 4).t())
    return model


def small():
    """Fewer rows than ranks."""
    return nn.Sequential(nn.Linear(5, 1), nn.Tanh(), nn.Linear(1, 1))


def squares(model, batch):
    x, y = batch
    return Outcome(((model(x) - y) ** 2).mean())


def tokens(model, batch):
    """The mean over 1 token of the first sample, 2 of the second ..., not over samples."""
    x, y = batch
    weight = (x[:, 0] * 3 + 4).round()
    each = ((model(x) - y) ** 2).squeeze(1)
    return Outcome((each * weight).sum() / weight.sum(), weight.sum())


def twice(model, batch):
    x, y = batch
    return Outcome(((model(x) + model(x.flip(1)) - y) ** 2).mean())


def inside(model, batch):
    """The task calls a part of the model, and looks at a weight that no block holds."""
    x, y = batch
    hidden = model.back[0](model.blocks[0](model.enter(x)))
    other = model.back[1](model.blocks[1](hidden))
    return Outcome(((model.leave(other) * model.scale - y) ** 2).mean() + model.enter.weight.norm())


def penalised(model, batch):
    said = squares(model, batch)
    return Outcome(said.loss + 0.1 * sum(p.square().sum() for p in model.parameters()))


def bounds(world):
    """Return the rows of this rank of 12: 7 and 5, or 6, 4 and 2, or 5, 4, 3 and none."""
    edges = {1: [0, 12], 2: [0, 7, 12], 3: [0, 6, 10, 12], 4: [0, 5, 9, 12, 12]}[world.size]
    return edges[world.rank], edges[world.rank + 1]


def share(world, rounds=1, shift=0):
    x, y = X.roll(shift, 0), Y.roll(shift, 0)
    first, end = bounds(world)
    if first == end:  # borrowed
        return Share([(x[:2], y[:2])], [0], 12, rounds)
    batches = list(zip(x[first:end].chunk(rounds), y[first:end].chunk(rounds), strict=True))
    return Share(batches, [len(part) for part, _ in batches], 12, rounds)


def sgd(module):
    return [SGD(module.parameters(), lr=0.1)]


def adamw(module):
    return [AdamW(module.parameters(), lr=0.01)]


def start(world, kind, loss=squares, strategy=None, optimizers=sgd, **settings):
    torch.manual_seed(world.rank)  # what ranks start with is rank 0's
    return (strategy or FSDP()).engine(
        kind(),
        optimizers,
        Objective(loss, squares),
        Settings(**{"precision": "float64", **settings}),
        world,
    )


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def largest_difference(engine, plain, of):
    """Return the largest difference of any parameter's numbers, relative to its largest one."""
    expected = dict(plain.named_parameters())
    differences = []
    for name, parameter in engine.module.named_parameters():
        found, right = whole(of(parameter)), of(expected[name])
        differences.append(float((found - right).abs().max() / right.abs().max()))
    return max(differences)


def gradient(parameter):
    return parameter.grad if parameter.grad is not None else torch.ones(1)


def gradients_agree(world, kind, loss, keys, rounds):
    engine = start(world, kind, loss, FSDP(**keys))
    plain = start(World(), kind, loss, Single())
    for _ in range(2):  # nothing of the first step is left over in the second
        result = engine.train_step(share(world, rounds))
        alone = plain.train_step(share(World()))
        assert largest_difference(engine, plain.module, gradient) <= 1e-12
        assert float(result.grad_norm) == pytest.approx(float(alone.grad_norm), rel=1e-12)
    [outcome] = engine.evaluate([((X, Y), 12)])
    [right] = plain.evaluate([((X, Y), 12)])
    assert float(outcome.loss) == pytest.approx(float(right.loss), rel=1e-12)


MODELS = [
    pytest.param(chain, squares, {}, id="chain"),
    pytest.param(chain, tokens, {}, id="tokens"),
    pytest.param(chain, twice, {}, id="two forwards, one backward"),
    pytest.param(Blocks, squares, {}, id="blocks, and what is around them"),
    pytest.param(Blocks, inside, {}, id="parts called by the task"),
    pytest.param(Blocks, squares, {"blocks": ["blocks", "blocks.0.0"]}, id="a block in a block"),
    pytest.param(Blocks, penalised, {"blocks": []}, id="all at once, parameters in the loss"),
    pytest.param(Tied, squares, {}, id="tied in the whole"),
    pytest.param(Tied, squares, {"blocks": ["first", "last"]}, id="tied, named"),
    pytest.param(Frozen, squares, {}, id="frozen"),
    pytest.param(Complex, squares, {}, id="complex"),
    pytest.param(Recurrent, squares, {}, id="recurrent"),
    pytest.param(InPlace, squares, {}, id="in place"),
    pytest.param(transposed, squares, {}, id="transposed"),
    pytest.param(small, squares, {}, id="fewer rows than ranks"),
]


@pytest.mark.parametrize(("kind", "loss", "keys"), MODELS)
def test_gradient_and_norm_are_those_of_one_process(in_ranks, kind, loss, keys):
    in_ranks(2, gradients_agree, kind, loss, keys, 2)


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize(("kind", "loss"), [(Blocks, squares), (small, tokens)])
def test_gradients_agree_on_more_ranks_one_without_samples(in_ranks, ranks, kind, loss):
    in_ranks(ranks, gradients_agree, kind, loss, {}, 2)
