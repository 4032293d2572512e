"""Which models can be cut, between which layers, and what is said of the others."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from parallel import UsageError
from parallel.pipeline.layers import layers


def names(model):
    return [name for name, _ in layers(model)]


class Offering(nn.Module):
    """A model that offers whatever it is told to."""

    def __init__(self, offer):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.offer = offer

    def pipeline_layers(self):
        return self.offer(self)

    def forward(self, x):
        return self.blocks[1](self.blocks[0](x))


class Twice(nn.Sequential):
    """No chain: it runs its layers twice."""

    def forward(self, x):
        return super().forward(super().forward(x))


class Holding(nn.Sequential):
    """A chain with numbers of its own."""

    def __init__(self, kind):
        super().__init__(nn.Linear(2, 2))
        numbers = torch.ones(3)
        if kind == "parameter":
            self.scale = nn.Parameter(numbers)
        else:
            self.register_buffer("scale", numbers)


def hooked():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    model.register_forward_hook(lambda module, inputs, outputs: outputs + 1)
    return model


def replaced():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    model.forward = lambda x: x
    return model


def test_children_of_nested_chains_are_counted_activations_too():
    inner = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh(), nn.Linear(2, 2)))
    model = nn.Sequential(OrderedDict(body=inner, head=nn.Linear(2, 1)))
    assert names(model) == ["body.0", "body.1.0", "body.1.1", "head"]


def test_a_layer_that_comes_twice_is_counted_twice():
    once = nn.Linear(2, 2)
    assert names(nn.Sequential(once, nn.Tanh(), once)) == ["0", "1", "2"]


def test_what_is_no_plain_chain_is_one_layer():
    model = nn.Sequential(Twice(nn.Linear(2, 2), nn.Tanh()), hooked(), nn.Sequential())
    assert names(model) == ["0", "1", "2"]


@pytest.mark.parametrize("kind", [list, dict, iter])
def test_a_model_may_offer_its_layers(kind):
    model = Offering(lambda m: kind((f"blocks.{n}", b) for n, b in enumerate(m.blocks)))
    assert names(model) == ["blocks.0", "blocks.1"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(2, 2), "the model is a Linear; to be cut, a model is an nn.Sequential, or"),
        (Twice(nn.Linear(2, 2)), "the model is a Twice; to be cut"),
        (hooked(), "the model is a Sequential; to be cut"),
        (replaced(), "the model is a Sequential; to be cut"),
        (nn.Sequential(nn.LazyLinear(2)), r"0\.weight, 0\.bias has no shape yet"),
        (nn.Sequential(), "the model has no layers: there is nothing to cut"),
        (Holding("parameter"), "no layer holds scale: a model that is cut keeps all parameters"),
        (Holding("buffer"), "no layer holds scale: a model that is cut keeps all parameters"),
        (Offering(lambda m: []), "the model has no layers"),
        (
            Offering(lambda m: m.blocks),
            r"pipeline_layers\(\) of Offering gave Linear, wanted pairs",
        ),
        (Offering(lambda m: [("x", m.blocks[0])]), r"gave \('x', Linear"),
        (Offering(lambda m: [("blocks.0", nn.Linear(2, 2))]), r"gave \('blocks.0', Linear"),
        (Offering(lambda m: ["blocks.0"]), "gave 'blocks.0', wanted pairs"),
        (Offering(lambda m: [("blocks.0", m.blocks[0])]), r"no layer holds blocks\.1\.weight"),
    ],
)
def test_a_model_that_cannot_be_cut_is_told_why(model, words):
    with pytest.raises(UsageError, match=words):
        layers(model)
