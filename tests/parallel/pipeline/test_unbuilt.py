"""A model built without memory gets the bits of its constructor, or is refused in words."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from launch.tasks.autoencoder import Autoencoder
from launch.tasks.digits import Digits
from launch.tasks.net import Net
from launch.tasks.text import Text
from parallel.errors import UsageError
from parallel.pipeline.layers import named_tensors
from parallel.pipeline.materialize import materialize
from parallel.pipeline.unbuilt import unbuilt, why_not

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of some of the layers


def seed():
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)


def generators():
    kind, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), kind, keys.tolist(), rest


def built(make):
    """Return the model that ``make`` builds, made in two parts, and the generators after it."""
    seed()
    model = unbuilt(make)
    assert why_not(model) == ""
    materialize(model, [model], CPU)
    return model, generators()


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    kinds = type(one), one.dtype, one.stride(), one.requires_grad
    if kinds != (type(other), other.dtype, other.stride(), other.requires_grad):
        return False
    return one.equal(other)


def differing(one: nn.Module, other: nn.Module) -> list[str]:
    ours, theirs = named_tensors(one), named_tensors(other)
    assert ours.keys() == theirs.keys()
    return [name for name in ours if not is_same(ours[name], theirs[name])]


class Holds(nn.Module):
    """A layer that ``fill`` equips, with a parameter that comes after it."""

    def __init__(self, fill):
        super().__init__()
        fill(self)
        self.after = nn.Linear(2, 2)


def parameter(make):
    return lambda: Holds(lambda m: setattr(m, "p", nn.Parameter(make())))


def buffer(make, persistent=True):
    return lambda: Holds(lambda m: m.register_buffer("b", make(), persistent))


def linear(change):
    """Return what makes a linear layer, changes it, and goes on drawing."""

    def make():
        layer = nn.Linear(20, 20)
        with torch.no_grad():
            changed = change(layer)
        return nn.Sequential(changed or layer, nn.Linear(3, 3))

    return make


def set_each(init):
    def change(layer):
        layer.apply(lambda m: init(m.weight) if hasattr(m, "weight") else None)

    return change


def tied():
    model = nn.ModuleList([nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)])
    model[1].weight = model[0].weight
    return model


def twice():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def in_double():
    torch.set_default_dtype(torch.float64)
    try:
        return nn.Linear(3, 3)
    finally:
        torch.set_default_dtype(torch.float32)


def copied_in(layer):
    layer.load_state_dict({"weight": torch.arange(400.0).view(20, 20), "bias": torch.ones(20)})


def through_numpy(layer):
    source = np.random.rand(20).astype("float32")
    layer.bias.copy_(torch.from_numpy(source))
    source[:] = 0  # what was copied is not changed by that


def run_once(layer):
    norm = nn.BatchNorm1d(20)
    norm(layer(torch.randn(5, 20)))
    return nn.Sequential(layer, norm)


def drop_path():
    rates = [x.item() for x in torch.linspace(0, 0.3, 4)]
    assert rates == torch.linspace(0, 0.3, 4).tolist()
    return nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Dropout(rate)) for rate in rates))


MODELS = {
    "text": Text().model,
    "autoencoder": Autoencoder(channel_scale=0.1).model,
    "digits": Digits().model,
    "net": Net().model,
    "transformer": lambda: nn.Transformer(16, 2, 2, 2, 32),
    "lstm": lambda: nn.LSTM(3, 4, 2, bidirectional=True),
    "attention": lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True),
    "convolutions": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ConvTranspose1d(2, 3, 2)),
    "norms": lambda: nn.Sequential(nn.BatchNorm2d(3), nn.GroupNorm(1, 3), nn.RMSNorm(3)),
    "padding": lambda: nn.Embedding(5, 3, padding_idx=1),
    "without numbers": lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]),
    "bilinear, gru": lambda: nn.ModuleList([nn.Bilinear(2, 3, 4), nn.GRUCell(2, 3), nn.PReLU()]),
    "spectral": lambda: parametrizations.spectral_norm(nn.Linear(3, 3)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
    "deep copies": lambda: nn.Sequential(*(copy.deepcopy(Digits().model()) for _ in range(2))),
    "randn": parameter(lambda: torch.randn(5, 4) * 0.02),
    "rand, views": parameter(lambda: torch.rand(6, 5).t()[1:3]),
    "long randn": parameter(lambda: torch.randn(999)),
    "permutation": buffer(lambda: torch.randperm(9)),
    "mask": buffer(lambda: torch.tril(torch.ones(4, 4)), persistent=False),
    "positions": buffer(lambda: torch.arange(4).expand(3, 4)),
    "python's numbers": buffer(lambda: torch.tensor([0.5, 2.0])),
    "complex": parameter(lambda: torch.randn(4, dtype=torch.complex64)),
    "bfloat16": parameter(lambda: torch.randn(40).bfloat16()),
    "two of one": buffer(lambda: torch.randn(4).chunk(2)[1]),
    "python's chance": parameter(lambda: torch.full((3,), random.random())),
    "numpy's chance": parameter(lambda: torch.full((3,), float(np.random.rand()))),
    "numpy's array": parameter(lambda: torch.from_numpy(np.random.rand(3))),
    "to the cpu": parameter(lambda: torch.randn(3, device="cpu").to("cpu")),
    "dropout of values": parameter(lambda: nn.functional.dropout(torch.ones(9), 0.5)),
    "chance of values": parameter(lambda: torch.bernoulli(torch.tensor([0.2, 0.7]))),
    "multinomial": buffer(lambda: torch.multinomial(torch.rand(9), 4)),
    "data": linear(lambda m: setattr(m.weight, "data", torch.randn(20, 20))),
    "orthogonal": linear(set_each(nn.init.orthogonal_)),
    "xavier": linear(set_each(nn.init.xavier_normal_)),
    "kaiming": linear(set_each(nn.init.kaiming_normal_)),
    "sparse": linear(set_each(lambda w: nn.init.sparse_(w, 0.1))),
    "eye": linear(set_each(nn.init.eye_)),
    "scaled": linear(set_each(lambda w: w.mul_(0.5))),
    "a row": linear(set_each(lambda w: w[3].normal_())),
    "reset twice": linear(lambda m: m.reset_parameters()),
    "in order otherwise": linear(lambda m: nn.Sequential(nn.Linear(4, 20), m)),
    "loaded": linear(copied_in),
    "through numpy": linear(through_numpy),
    "run once": linear(run_once),
    "tied": tied,
    "used twice": twice,
    "double": in_double,
    "items": drop_path,
}


@pytest.mark.parametrize("name", MODELS)
def test_bits_and_generators_are_the_constructors(name):
    seed()
    wanted = MODELS[name]()
    after = generators()
    model, met = built(MODELS[name])
    assert differing(model, wanted) == []
    assert met == after


@pytest.mark.parametrize("name", MODELS)
def test_building_takes_nothing_from_torchs_generator(name):
    seed()
    before = torch.get_rng_state()
    unbuilt(MODELS[name])
    assert torch.get_rng_state().equal(before)


def reseeds(value):
    def make():
        first = nn.Linear(3, 3)
        torch.manual_seed(value)
        return nn.Sequential(first, nn.Linear(3, 3))

    return make


def forks():
    with torch.random.fork_rng(devices=[]):
        first = nn.Linear(3, 3)
    return nn.Sequential(first, nn.Linear(3, 3))


def own_generator():
    return torch.randn(3, generator=torch.Generator().manual_seed(0))


def looks(layer):
    if layer.weight.sum() > 0:
        layer.bias.zero_()


def by_numpy(layer):
    layer.bias.numpy()[:] = 1


def by_address(layer):
    return nn.Linear(1, 1) if layer.weight.data_ptr() == layer.bias.data_ptr() else None


def overwrites():
    return nn.init.normal_(torch.tensor([1.0, 2.0]))


def on_a_gpu():
    return torch.randn(3, device="cuda")


def keeps(module):
    module.scale = torch.ones(3)


def hides(module):
    module.scales = [torch.ones(3)]


REFUSED = {
    "seeds": (reseeds(7), "it seeds or sets torch's random generator itself"),
    "seeds as the run did": (reseeds(3), "it seeds or sets torch's random generator itself"),
    "forks": (forks, "it seeds or sets torch's random generator itself"),
    "own generator": (parameter(own_generator), "draws from a random generator of its own"),
    "rejects draws": (linear(set_each(nn.init.trunc_normal_)), "numbers that are drawn at random"),
    "looks": (linear(looks), "looks at numbers that are drawn at random"),
    "numpy": (linear(by_numpy), "can't convert meta|Can't call numpy"),
    "address": (linear(by_address), r"looks at a tensor's memory \(data_ptr\)"),
    "overwrites": (parameter(overwrites), r"overwrites values that python gave"),
    "keeps": (lambda: Holds(keeps), r"Holds.scale is neither a parameter nor a buffer"),
    "hides": (lambda: Holds(hides), r"a tensor of shape \[3\], somewhere, is neither"),
    "lazy": (lambda: nn.LazyLinear(3), "weight takes its shape from the first batch"),
    "fails": (lambda: nn.Linear("a", 2), "TypeError: "),
    "device": (
        parameter(lambda: torch.randn(3, device="cuda")),
        "a device of its own choice|not compiled",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_put_off_is_refused_with_the_way(name):
    make, words = REFUSED[name]
    seed()
    before = torch.get_rng_state()
    with pytest.raises(UsageError, match=rf"({words})(.|\n)*strategy.build=whole"):
        unbuilt(make)
    assert torch.get_rng_state().equal(before)


def partly():
    tensor = torch.empty(4)
    tensor[:2].normal_()
    return tensor


@pytest.mark.parametrize("make", [lambda: torch.empty(3), partly])
def test_tensors_without_values_are_told_by_name(make):
    model = unbuilt(parameter(make))
    words = r"leaves p without values .*checkpoint.init_from=PATH, or use strategy.build=whole"
    assert "leaves p without values" in why_not(model)
    with pytest.raises(UsageError, match=words):
        materialize(model, [model], CPU)


def test_a_model_that_is_no_module_is_refused():
    with pytest.raises(UsageError, match="returned a int, wanted a Module"):
        unbuilt(lambda: 3)


def test_a_dtype_that_the_constructor_does_not_choose_is_the_one_of_then():
    model, _ = built(in_double)
    assert model.weight.dtype == torch.float64
