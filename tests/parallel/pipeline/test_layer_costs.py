import gc
import warnings
from time import sleep
from weakref import WeakSet

import pytest
import torch
from torch import nn

from parallel import UsageError
from parallel.pipeline.profile import LayerCost, profile

CPU = torch.device("cpu")
MEASURED = pytest.mark.parametrize("by", ["time", "flops"])


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(inplace=True),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(8 * 6 * 6, 10),
        nn.Sigmoid(),
    )


def costs(model, example, by, device=CPU):
    return profile(list(model.named_children()), example, by, device)


def kept_by(model, example):
    """The bytes that one forward of the whole model keeps for its backward, parameters aside."""
    kept = {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(example)
    own = {each.data_ptr() for each in (*model.parameters(), *model.buffers())}
    return sum(size for at, size in kept.items() if at not in own)


class Sleeps(nn.Module):
    """Takes ``forward_s`` and ``backward_s``, and a second more the first time."""

    def __init__(self, forward_s, backward_s):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.forward_s, self.backward_s, self.called = forward_s, backward_s, 0

    def forward(self, x):
        self.called += 1
        sleep(self.forward_s + (0.3 if self.called == 1 else 0))
        out = x * self.weight
        out.register_hook(lambda _: sleep(self.backward_s))
        return out


COPIES = WeakSet()
ALIVE = []  # how many copies there were at each forward


class Tracked(nn.Linear):
    def __setstate__(self, state):
        super().__setstate__(state)
        COPIES.add(self)

    def forward(self, x):
        ALIVE.append(len(COPIES))
        return super().forward(x)


class Tree(nn.Module):
    def forward(self, given):
        hidden, extra = given
        return {"hidden": [hidden * 2, extra["mask"]], "steps": 3, "none": None}


class Join(nn.Module):
    def forward(self, given):
        hidden, mask = given["hidden"]
        return hidden.masked_fill(mask, 0.0) * given["steps"]


def test_forward_and_backward_are_timed_and_the_first_run_is_thrown_away():
    slow, fast = costs(nn.Sequential(Sleeps(0.02, 0.05), nn.Linear(4, 4)), torch.ones(2, 4), "time")
    assert 0.02 <= slow.forward_s < 0.2
    assert 0.05 <= slow.backward_s < 0.2
    assert 0 < fast.forward_s < 0.01
    assert 0 < fast.backward_s < 0.01


def test_arithmetic_is_counted_forward_and_backward():
    first, active, second = costs(
        nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), torch.ones(2, 5), "flops"
    )
    assert first.flops == 2 * (2 * 2 * 5 * 7)  # the inputs of the first need no gradient
    assert active.flops == 0
    assert second.flops == 3 * (2 * 2 * 7 * 3)


@pytest.mark.parametrize(
    ("layer", "shape", "flops"),
    [
        # 4 projections and 2 feed-forward layers a token, 2 products of its attention; 6 = 2 · 3
        (
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
            (2, 5, 16),
            6 * 10 * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 6 * 2 * 2 * 5 * 5 * 8,
        ),
        (nn.LSTM(8, 8), (4, 2, 8), 6 * (4 * 2) * (2 * 4 * 8 * 8)),
    ],
)
def test_arithmetic_of_fused_layers_is_counted(layer, shape, flops):
    _, cost = profile(
        [("before", nn.Linear(shape[-1], shape[-1])), ("it", layer)],
        torch.ones(shape),
        "flops",
        CPU,
    )
    assert cost.flops == pytest.approx(flops, rel=0.05)


@MEASURED
def test_what_is_kept_for_the_backward_adds_up_to_the_whole_models(by):
    model, example = convolutions(), torch.rand(2, 3, 8, 8)
    found = costs(model, example, by)
    assert sum(each.saved for each in found) == kept_by(model, example)
    assert [each.saved > 0 for each in found] == [True, True, True, False, True, True]
    assert found[0].saved == example.numel() * 4


@pytest.mark.parametrize("by", ["time", "flops", "params"])
def test_bytes_of_parameters_and_outputs_are_counted(by):
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2, dtype=torch.float32))
    model[0].bias.requires_grad_(False)
    first, second = costs(model, torch.ones(4, 3), by)
    assert (first.name, first.parameters, first.trained, first.out) == ("0", 80, 60, 80)
    assert (second.name, second.parameters, second.trained, second.out) == ("1", 48, 48, 32)


def test_without_an_example_parameters_are_counted():
    found = costs(nn.Sequential(nn.Linear(3, 5), nn.ReLU()), None, "flops")
    assert found == [LayerCost("0", parameters=80, trained=80), LayerCost("1")]


@MEASURED
def test_layers_buffers_gradients_and_generators_stay_as_they_are(by):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4)).eval()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    torch.manual_seed(3)
    drawn = torch.rand(4)
    torch.manual_seed(3)
    costs(model, torch.ones(8, 4), by)
    assert torch.equal(torch.rand(4), drawn)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert [each.grad for each in model.parameters()] == [None] * 4
    assert not any(each.training for each in model.modules())


@MEASURED
def test_layers_on_the_meta_device_are_measured_and_stay_there(by):
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.LSTM(4, 4))
    found = costs(model, torch.randint(9, (3, 2)), by)
    assert {each.device.type for each in model.parameters()} == {"meta"}
    assert [each.flops + each.backward_s > 0 for each in found[1:]] == [True, True]
    assert found[1].saved == 3 * 2 * 4 * 4


def test_counting_takes_no_memory():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(10**6, 10**6), nn.Linear(10**6, 10**6))
    _, cost = costs(model, torch.ones(1, 10**6), "flops")
    assert cost.parameters == 4 * 10**6 * (10**6 + 1)
    assert cost.flops == 3 * 2 * 10**12


def test_one_layer_is_copied_at_a_time():
    costs(nn.Sequential(*(Tracked(2, 2) for _ in range(4))), torch.ones(1, 2), "time")
    assert set(ALIVE) == {1}


@MEASURED
def test_trees_of_tensors_pass_from_layer_to_layer(by):
    example = (torch.ones(2, 3), {"mask": torch.zeros(2, 3, dtype=torch.bool)})
    tree, joined, last = costs(nn.Sequential(Tree(), Join(), nn.Linear(3, 3)), example, by)
    assert tree.out == 2 * 3 * 4 + 2 * 3
    assert joined.out == last.out == 2 * 3 * 4


def test_behind_frozen_layers_alone_there_is_no_backward():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    frozen, first, last = costs(model, torch.ones(2, 4), "flops")
    assert (frozen.flops, first.flops, last.flops) == (64, 128, 192)
    assert (frozen.trained, frozen.saved) == (0, 0)


@MEASURED
def test_a_layer_that_fails_is_named_with_what_it_was_given(by, caplog):
    words = r"layer '1', a Linear, raises RuntimeError on float32 \[2, 5\]: .*2.?[x,] ?5.*in order"
    with pytest.raises(UsageError, match=words):
        costs(nn.Sequential(nn.Linear(4, 5), nn.Linear(4, 5)), torch.ones(2, 4), by)
    assert caplog.records == []  # torch has nothing to add


class Looks(nn.Module):
    def forward(self, x):
        return x[: int(x.sum())]


def test_a_layer_that_looks_at_numbers_can_only_be_timed():
    with pytest.raises(UsageError, match=r"a Looks, raises .*strategy.balance=time runs it on n"):
        costs(nn.Sequential(Looks()), torch.ones(2), "flops")
    assert costs(nn.Sequential(Looks()), torch.ones(2), "time")[0].out == 8


def test_an_unknown_measure_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"strategy.balance=size is not one of time, flops, par"):
        costs(nn.Sequential(), None, "size")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_seconds_are_the_devices_own():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(4096, 4096))
    small, large = costs(model, torch.ones(8, 64), "time", torch.device("cuda"))
    assert 0 < small.forward_s < large.forward_s


def test_nothing_that_was_measured_stays_in_memory():
    model = nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Tanh(), nn.Sigmoid())
    profile(list(model.named_children()), torch.rand(11, 7), "time", CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what else lives in torch, once it is looked at
        left = [each for each in gc.get_objects() if type(each) is torch.Tensor]
    assert [each for each in left if tuple(each.shape) == (11, 13)] == []
