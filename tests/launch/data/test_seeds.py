import random

import numpy
import pytest
import torch

from launch.data import derive, seed_all
from launch.data.seeds import lent


def test_derived_seeds_are_the_same_on_every_machine_and_forever():
    assert derive(0, "order", 0) == 3471081512423777433
    assert derive(7, "fetch", 3, 12, 1, 0) == 8130139549884245009
    assert derive(1, 23) != derive(12, 3)
    assert all(0 <= derive(n) < 2**63 for n in range(100))


def test_generators_that_are_lent_come_back_as_they_were():
    def draw():
        return random.random(), numpy.random.rand(), torch.rand(()).item()

    seed_all(3)
    expected = [draw() for _ in range(2)]
    seed_all(3)
    first = draw()
    with lent(5):
        inside = draw()
    with pytest.raises(ZeroDivisionError), lent(5):
        1 / 0  # noqa: B018 - it raises
    assert [first, draw()] == expected
    assert inside not in expected
