"""Fingerprints of tensors, and what ranks find when they compare them."""

import pytest
import torch
from torch import nn

from parallel import World
from parallel.agreement import differing, fingerprint, first_unlike, listed

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.int64,
    torch.uint16,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (70, 9)])
def test_any_single_element_that_differs_is_seen(dtype, shape):
    tensor = torch.ones(shape).to(dtype)
    before = fingerprint(tensor)
    for place in {0, tensor.numel() // 2, tensor.numel() - 1}:
        other = tensor.clone()
        other.view(-1)[place] = torch.zeros((), dtype=dtype)
        assert not fingerprint(other).equal(before)
    assert fingerprint(tensor.clone()).equal(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_unit_in_the_last_place_is_seen(dtype):
    tensor = torch.linspace(-1, 1, 1001, dtype=dtype)
    other = tensor.clone()
    other[500] = torch.nextafter(other[500], torch.tensor(2.0, dtype=dtype))
    assert not fingerprint(other).equal(fingerprint(tensor))


def test_signs_that_flip_and_values_that_change_places_are_seen():
    tensor = torch.arange(1, 1000, dtype=torch.float64)
    flipped, swapped = tensor.clone(), tensor.clone()
    flipped[:2] *= -1
    swapped[[0, 3]] = swapped[[3, 0]]
    prints = [fingerprint(t).tolist() for t in (tensor, -tensor, flipped, swapped)]
    assert len(set(map(tuple, prints))) == 4


def test_a_view_has_the_print_of_its_copy():
    matrix, numbers = torch.randn(6, 7), torch.randn(5, dtype=torch.complex64)
    views = [
        matrix.t(),
        matrix[:, 1],
        matrix[0, 1:],
        matrix[:0],
        numbers.conj(),
        numbers.conj().imag,
    ]
    views += [
        torch.ones(1).expand(40),
        nn.Parameter(matrix),
        matrix.view(1, 6, 7, 1).transpose(1, 3),
    ]
    for view in views:
        assert fingerprint(view).equal(fingerprint(torch.tensor(view.tolist(), dtype=view.dtype)))


def test_alone_all_is_alike(alone):
    assert differing({}, alone) == {}
    assert differing({"a": torch.ones(3)}, alone) == {}
    assert first_unlike({"a": "[3] float32"}, alone) == ""


def compare(world: World):
    same = {"same": torch.arange(5), "empty": torch.zeros(0)}
    assert differing(same, world) == {}
    own = torch.ones(9, 9)
    if world.rank == 1:
        own[8, 8] = 1 + 2**-23
    assert differing(same | {"own": own}, world) == {"own": [1]}
    assert differing(same | {"rank": torch.tensor(world.rank)}, world) == {"rank": [1, 2]}
    assert differing({"a" if world.rank else "b": own[0]}, world) == {"b": [0], "a": [0]}
    cast = torch.zeros(4, dtype=torch.int32 if world.rank == 2 else torch.float32)
    assert differing({"cast": cast}, world) == {"cast": [2]}
    assert differing({"cut": torch.zeros(2, 2) if world.rank else torch.zeros(4)}, world) == {
        "cut": [0]
    }


def test_ranks_find_what_differs_and_which_of_them_is_unlike_most(in_ranks):
    in_ranks(3, compare)


def test_eight_names_are_shown():
    assert listed("abc") == "a, b, c"
    assert listed("abcdefghij") == "a, b, c, d, e, f, g, h and 2 more"
