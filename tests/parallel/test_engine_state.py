"""What an engine holds goes on in another: the same steps follow."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from parallel import DDP, Objective, Outcome, Settings, Share, Single, UsageError, World

X = torch.linspace(-1, 2, 12).reshape(6, 2)


class Net(nn.Module):
    """A buffer, tied weights, and a frozen part."""

    def __init__(self, width=2):
        super().__init__()
        self.first, self.norm = nn.Linear(2, width), nn.BatchNorm1d(width)
        self.last, self.frozen = nn.Linear(width, 2), nn.Linear(2, 2).requires_grad_(False)
        if width == 2:
            self.last.weight = self.first.weight

    def forward(self, x):
        return self.frozen(self.last(self.norm(self.first(x)).tanh()))


def loss(model, batch):
    return Outcome((model(batch) ** 2).mean())


def momentum(module):
    return [SGD(module.parameters(), lr=0.1, momentum=0.9, nesterov=True)]


def adamw(module):
    return [AdamW(module.parameters(), lr=0.01, amsgrad=True)]


def groups(module):
    decayed = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim == 1]
    return [
        AdamW([{"params": others, "weight_decay": 0.0, "lr": 0.05}, {"params": decayed}], lr=0.01)
    ]


def two(module):
    trained = [p for p in module.parameters() if p.requires_grad]
    return [Adam(trained[:1], lr=0.01), SGD(trained[1:], lr=0.1, momentum=0.9)]


def start(world, optimizers, seed=0, strategy=None, model=Net, **settings):
    torch.manual_seed(seed)
    return (strategy or Single()).engine(
        model(), optimizers, Objective(loss, loss), Settings(**settings), world
    )


def steps(engine, count, x=X, total=6):
    for _ in range(count):
        engine.train_step(Share([x], [len(x)], total))


def assert_same(found, expected):
    torch.testing.assert_close(found.model, expected.model, rtol=0, atol=0)
    torch.testing.assert_close(found.optimizer, expected.optimizer, rtol=0, atol=0)
    assert found.groups == expected.groups
    assert found.scaler == expected.scaler


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("optimizers", [momentum, adamw, groups, two])
def test_a_state_goes_on_in_a_fresh_engine_bit_for_bit(alone, optimizers, precision):
    engine = start(alone, optimizers, precision=precision)
    steps(engine, 3)
    held = deepcopy(engine.state())
    steps(engine, 3)
    fresh = start(alone, optimizers, seed=1, precision=precision)
    fresh.load(held)
    assert_same(fresh.state(), held)
    steps(fresh, 3)
    assert_same(fresh.state(), engine.state())


@pytest.mark.parametrize("optimizers", [momentum, adamw, two])
def test_training_on_leaves_a_loaded_state_as_it_was(alone, optimizers):
    engine = start(alone, optimizers)
    steps(engine, 2)
    held = engine.state()  # references: the first engine's own tensors
    before = deepcopy(held)
    fresh = start(alone, optimizers, seed=1)
    fresh.load(held)
    steps(fresh, 3)
    assert_same(held, before)
    assert_same(engine.state(), before)


class Precise(Optimizer):
    """Sums of gradients in float32, and counts of large ones, whatever the parameters' dtype."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in (p for group in self.param_groups for p in group["params"]):
            if parameter.grad is not None:
                slots = self.state[parameter]
                zeros = torch.zeros_like(parameter, dtype=torch.float32)
                total = slots.setdefault("total", zeros)
                slots.setdefault("large", zeros.to(torch.int64)).add_(parameter.grad.abs() > 0.01)
                total.mul_(0.9).add_(parameter.grad.float() / 3)
                parameter.sub_((0.1 * total).to(parameter.dtype))
                slots.setdefault("seen", []).append(1)


def precise(module):
    return [Precise(module.parameters())]


def low():
    return Net().bfloat16()


def test_slots_of_another_dtype_than_the_parameters_go_on_exactly(alone):
    engine = start(alone, precise, model=low)
    steps(engine, 3, X.bfloat16())
    held = deepcopy(engine.state())
    assert held.optimizer["0/first.bias/total"].dtype == torch.float32
    fresh = start(alone, precise, seed=1, model=low)
    fresh.load(held)
    assert_same(fresh.state(), held)
    steps(engine, 3, X.bfloat16())
    steps(fresh, 3, X.bfloat16())
    assert_same(fresh.state(), engine.state())
    assert held.groups[0]["numbers"]["first.bias"]["seen"] == [1, 1, 1]


@pytest.mark.parametrize("optimizers", [momentum, adamw])
def test_slots_of_the_parameters_own_dtype_follow_it_into_another_precision(alone, optimizers):
    engine = start(alone, optimizers)
    steps(engine, 2)
    wide = start(alone, optimizers, precision="float64")
    wide.load(deepcopy(engine.state()))
    for key, value in wide.state().optimizer.items():
        assert value.dtype == (torch.float32 if key.endswith("/step") else torch.float64)
    steps(wide, 1, X.double())


def test_learning_rates_of_groups_are_part_of_the_state(alone):
    engine = start(alone, groups)
    engine.optimizers[0].param_groups[0]["lr"] = 0.123
    fresh = start(alone, groups)
    fresh.load(deepcopy(engine.state()))
    assert [group["lr"] for group in fresh.optimizers[0].param_groups] == [0.123, 0.01]


def test_tensors_carry_the_models_own_names(alone):
    engine = start(alone, two)
    steps(engine, 1)
    held = engine.state()
    assert set(held.model) == set(Net().state_dict())
    assert set(held.optimizer) == {
        "0/first.weight/step",
        "0/first.weight/exp_avg",
        "0/first.weight/exp_avg_sq",
        "1/first.bias/momentum_buffer",
        "1/norm.weight/momentum_buffer",
        "1/norm.bias/momentum_buffer",
        "1/last.bias/momentum_buffer",
    }
    assert held.groups[0]["groups"][0]["params"] == ["first.weight"]


def test_the_state_is_references_not_copies(alone):
    engine = start(alone, momentum)
    held = engine.state()
    assert held.model["first.weight"].data_ptr() == engine.module.first.weight.data_ptr()


def go_on_alone(world):
    held = deepcopy_of_replicas(world)
    fresh = start(World(), adamw, seed=1)
    fresh.load(held)
    assert_same(fresh.state(), held)
    back = start(world, adamw, seed=2, strategy=DDP())
    back.load(deepcopy(fresh.state()))
    assert_same(back.state(), held)
    steps(back, 1, X[world.rank :: world.size])


def deepcopy_of_replicas(world):
    engine = start(world, adamw, strategy=DDP())
    steps(engine, 2, X[world.rank :: world.size])
    return deepcopy(engine.state())


def test_C4_a_state_of_ddp_goes_on_alone_and_back(in_ranks):
    in_ranks(2, go_on_alone)


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.other = nn.Linear(2, 2), nn.Linear(2, 2)


def wide():
    return Net(width=5)


@pytest.mark.parametrize(
    ("model", "words"),
    [(Other, r"of another model.*(?s:.*)other\.weight"), (wide, r"of another model.*(?s:.*)size")],
)
def test_the_weights_of_another_model_are_refused(alone, model, words):
    held = deepcopy(start(alone, momentum).state())
    with pytest.raises(UsageError, match=words):
        start(alone, momentum, model=model).load(held)


@pytest.mark.parametrize(
    ("saved", "loading", "words"),
    [
        (two, momentum, "2 optimizers were saved, but the task makes 1"),
        (momentum, two, "1 optimizers were saved, but the task makes 2"),
        (groups, adamw, "other parameter groups than this run's"),
    ],
)
def test_the_state_of_other_optimizers_is_refused(alone, saved, loading, words):
    held = deepcopy(start(alone, saved).state())
    with pytest.raises(UsageError, match=words):
        start(alone, loading).load(held)


def test_an_optimizer_of_what_is_not_the_models_is_refused_before_the_first_step(alone):
    stray = nn.Parameter(torch.zeros(3, 4))
    make = lambda m: [SGD(m.parameters(), lr=0.1), SGD([stray], lr=0.1)]  # noqa: E731 - two lines
    with pytest.raises(UsageError, match=r"shape \[3, 4\] that is none of the model's"):
        start(alone, make)


class Keeping(Net):
    """State that is no tensor."""

    def get_extra_state(self):
        return {"words": ["a", "b"]}

    def set_extra_state(self, state):
        self.words = state["words"]


def test_a_model_with_state_that_is_no_tensor_is_refused_when_it_is_saved_not_when_loaded(alone):
    with pytest.raises(UsageError, match="'_extra_state' is a dict, and only tensors are saved"):
        start(alone, momentum, model=Keeping).state()
