from dataclasses import dataclass

import pytest
import torch
from torch.utils.data import Dataset, StackDataset, Subset, TensorDataset, default_collate

from launch.data.fetch import Fetch
from launch.data.sampler import Part

X, Y = torch.arange(20.0).reshape(10, 2), torch.arange(10)
TENSORS = TensorDataset(X, Y)


@dataclass
class Ready(Dataset):
    """All samples at once: the batch itself, or a list of samples."""

    as_list: bool

    def __len__(self):
        return 10

    def __getitem__(self, i):
        raise AssertionError("asked one by one")

    def __getitems__(self, indices):
        if self.as_list:
            return [(X[i], Y[i]) for i in indices]
        return {"x": X[indices], "y": Y[indices]}


class Odd(TensorDataset):
    """A subclass may answer otherwise."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return -x, y


class Noisy(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return torch.rand(()), i


def part(*indices, fact=0):
    return Part(torch.tensor(indices), len(indices), (fact,))


def assert_is(batch, indices, sign=1):
    x, y = batch
    assert x.equal(sign * X[indices])
    assert y.equal(Y[indices])


SUBSET = Subset(TENSORS, [9, 7, 5, 3])
SETS = [
    pytest.param(TENSORS, [3, 1], [3, 1], id="tensors"),
    pytest.param(SUBSET, [3, 1], [3, 7], id="subset"),
    pytest.param(Subset(SUBSET, range(1, 3)), [0, 1], [7, 5], id="subset of a subset"),
    pytest.param([(X[i], Y[i]) for i in range(10)], [3, 1], [3, 1], id="list"),
    pytest.param(StackDataset(X, Y), [3, 1], [3, 1], id="stack"),
    pytest.param(Ready(as_list=True), [3, 1], [3, 1], id="a list at once"),
]


@pytest.mark.parametrize(("dataset", "indices", "expected"), SETS)
def test_a_batch_is_what_default_collate_makes_of_the_samples(dataset, indices, expected):
    assert_is(Fetch(dataset).__getitems__(part(*indices)), expected)


@pytest.mark.parametrize(("dataset", "indices", "expected"), SETS)
def test_many_batches_are_those_fetched_one_by_one(dataset, indices, expected):
    fetch = Fetch(dataset)
    parts = [part(*indices), part(indices[0]), part(*reversed(indices))]
    for batch, own in zip(fetch.many(parts), parts, strict=True):
        single = fetch.__getitems__(own)
        assert type(batch) is type(single)
        assert all(a.equal(b) for a, b in zip(batch, single, strict=True))
    assert fetch.many([]) == []


def test_a_ready_batch_is_not_collated_again():
    batch = Fetch(Ready(as_list=False)).__getitems__(part(2, 4))
    assert batch.keys() == {"x", "y"}
    assert batch["x"].equal(X[[2, 4]])


def test_a_subclass_is_asked_itself():
    fetch = Fetch(Odd(X, Y))
    assert_is(fetch.__getitems__(part(2, 4)), [2, 4], sign=-1)
    assert_is(fetch.many([part(2, 4), part(1)])[0], [2, 4], sign=-1)


@pytest.mark.parametrize("dataset", [TENSORS, SUBSET])
def test_the_tasks_own_collation_is_used(dataset):
    def collate(samples):
        return len(samples), default_collate(samples)

    batches = Fetch(dataset, collate).many([part(2, 1), part(1)])
    assert [count for count, _ in batches] == [2, 1]


def test_J3_what_is_random_in_a_sample_follows_from_the_part_alone():
    fetch, state = Fetch(Noisy()), torch.get_rng_state()
    first, again, other = (fetch.__getitems__(part(1, 2, fact=f))[0] for f in (5, 5, 6))
    assert first.equal(again)
    assert not first.equal(other)
    assert torch.get_rng_state().equal(state), "the training's own generator was drawn from"


def test_only_tensors_are_fetched_ahead_and_within_bounds():
    assert Fetch(TENSORS).at_once(4) == 64
    assert Fetch(TENSORS).at_once(2**20) == 1
    assert Fetch(TensorDataset(torch.zeros(4, 2**18))).at_once(4) == 4  # 1 MiB a sample, 16 in all
    assert Fetch(Noisy()).at_once(4) == 1
