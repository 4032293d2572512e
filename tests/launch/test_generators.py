"""Generators that are given back go on with the numbers they would have drawn."""

from __future__ import annotations

import json
import random

import numpy
import torch

from launch.checkpoint.plain import decode, encode
from launch.generators import give_back, held_by

CPU = torch.device("cpu")


def draws():
    return (
        [random.random(), random.gauss(0, 1)],
        numpy.random.rand(3).tolist() + numpy.random.randn(3).tolist(),
        torch.rand(3).tolist() + torch.randn(3).tolist(),
    )


def test_D10_every_generator_goes_on_where_it_was_after_a_way_through_json():
    random.gauss(0, 1), numpy.random.randn()  # each holds the second of a pair
    text = json.dumps(encode(held_by(CPU)), allow_nan=False)
    wanted = draws()
    random.seed(5), numpy.random.seed(5), torch.manual_seed(5)
    give_back(decode(json.loads(text)), CPU)
    assert draws() == wanted
