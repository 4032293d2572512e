"""Plain values survive JSON, and what would not is refused by its place."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy
import pytest
import torch

from launch.checkpoint.plain import decode, encode


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (None, None),
        (True, True),
        (10**30, 10**30),
        (0.1, 0.1),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        ("$float", "$float"),
        (b"\x00\xff", b"\x00\xff"),
        ((1, (2.5, "a")), [1, [2.5, "a"]]),
        ({"a": {"b": [math.inf]}}, {"a": {"b": [math.inf]}}),
        ({1: "one", "two": 2}, {1: "one", "two": 2}),
        ({"$float": "no number"}, {"$float": "no number"}),
        ({"$items": [], "$bytes": 1}, {"$items": [], "$bytes": 1}),
        (Counter({30: 1, 80: 2}), {30: 1, 80: 2}),
        (torch.tensor(2.5), 2.5),
        (torch.tensor(3), 3),
        (numpy.float64(0.5), 0.5),
    ],
    ids=repr,
)
def test_a_value_comes_back(value, back):
    met = decode(json.loads(json.dumps(encode(value), allow_nan=False)))
    assert met == back
    assert type(met) is type(back)


def test_nan_comes_back():
    assert math.isnan(decode(encode(math.nan)))


@pytest.mark.parametrize("value", [{1, 2}, object(), torch.zeros(2), print, numpy.zeros(2)])
def test_what_json_cannot_hold_is_named(value):
    with pytest.raises(TypeError, match=rf"state\.a\[1\] is a {type(value).__name__}, and"):
        encode({"a": [0, value]})
