"""What crosses a cut comes out as it went in; what cannot is refused in words."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple

import pytest
import torch

from parallel import UsageError
from parallel.pipeline.tree import described, empty, flatten, unflatten

Point = namedtuple("Point", "x y")
ONE, TWO = torch.ones(2, 3), torch.tensor([True, False])
VALUES = [
    pytest.param(ONE, id="a tensor"),
    pytest.param((ONE, TWO), id="a tuple"),
    pytest.param([ONE, [TWO, (ONE,)]], id="nested lists"),
    pytest.param({"x": ONE, "mask": {"m": TWO, "none": None}}, id="nested dicts"),
    pytest.param({1: ONE, "1": TWO, None: ONE, False: 2}, id="keys of every kind"),
    pytest.param((), id="an empty tuple"),
    pytest.param([{}, [], ()], id="empty ones"),
    pytest.param((1, True, 1.0, "tensor", None, -0.5, float("inf"), 2**70), id="plain ones"),
    pytest.param({"tensor": ONE, "tuple": (1,), "dict": {}}, id="our own words as keys"),
    pytest.param("a text \ud800 é", id="odd text"),
]


def shown(value):
    """Return what tells 1, 1.0 and True apart, as ``==`` does not."""
    return repr(value)


@pytest.mark.parametrize("value", VALUES)
def test_E11_a_value_is_put_together_as_it_was(value):
    tensors, form = flatten(value)
    sent = json.loads(json.dumps(form))
    assert shown(unflatten(sent, tensors)) == shown(value)
    assert [list(each.shape) for each in tensors] == [shape for _, shape, _ in described(sent)]


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool,
     torch.complex64, torch.complex128, torch.float8_e4m3fn],
)  # fmt: skip
def test_E10_memory_is_made_of_the_dtype_and_shape_that_were_sent(dtype):
    _, form = flatten([torch.zeros((), dtype=dtype), torch.zeros(3, 0, 2, dtype=dtype)])
    made = empty(json.loads(json.dumps(form)), torch.device("cpu"))
    assert [(each.dtype, tuple(each.shape)) for each in made] == [(dtype, ()), (dtype, (3, 0, 2))]


def test_whether_a_gradient_is_wanted_is_part_of_the_form():
    _, form = flatten((torch.ones(1, requires_grad=True), torch.ones(1)))
    assert [wanted for _, _, wanted in described(form)] == [True, False]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Point(ONE, TWO), "a layer returned a Point"),
        (OrderedDict(x=ONE), "a layer returned a OrderedDict"),
        ({(1, 2): ONE}, "a layer returned a dict"),
        ((ONE, {ONE}), "a layer returned a set"),
        (object(), "a layer returned a object"),
        (1j, "a layer returned a complex"),
        (ONE.to_sparse(), "a layer returned a sparse tensor, which cannot go"),
    ],
    ids=str,
)
def test_E11_what_cannot_cross_is_named(value, words):
    with pytest.raises(UsageError, match=words):
        flatten(value)
