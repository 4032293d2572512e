from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import Dataset, TensorDataset

from launch.data import loader
from launch.failures import describe
from parallel import Objective, Outcome, Phases, Settings, Single, World

CPU = torch.device("cpu")
TENSORS = TensorDataset(torch.arange(64.0).unsqueeze(1))


@dataclass
class Pictures(Dataset):
    count: int

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return torch.full((2,), float(i)), i


def epoch(dataset, size, world=None, number=0, start=0, **options):
    shares = loader(dataset, world or World(), size, **options)
    found = list(shares.epoch(number, start, Phases(CPU)))
    assert shares.steps_per_epoch == len(found) + start
    return found


def test_B3_two_ranks_take_8_steps_of_half_a_global_batch():
    alone = epoch(TENSORS, 8)
    assert [share.counts for share in alone] == [[8]] * 8
    ranks = [epoch(TENSORS, 8, World(rank=r, size=2)) for r in range(2)]
    for own in ranks:
        assert [share.counts for share in own] == [[4]] * 8
        assert [share.total for share in own] == [8] * 8
    for whole, parts in zip(alone, zip(*ranks, strict=True), strict=True):
        union = torch.cat([part.batches[0][0] for part in parts])
        assert union.flatten().sort().values.equal(whole.batches[0][0].flatten().sort().values)


def test_ranks_of_one_replica_read_the_same():
    ranks = [epoch(TENSORS, 8, World(rank=r, size=4), replicas=2) for r in range(4)]
    firsts = [own[0].batches[0][0].flatten().tolist() for own in ranks]
    assert firsts[0] == firsts[1] != firsts[2] == firsts[3]
    whole = [epoch(TENSORS, 8, World(rank=r, size=2), replicas=1)[0].counts for r in range(2)]
    assert whole == [[8], [8]]


def test_tensors_selected_ahead_are_the_samples_asked_for_one_by_one():
    dataset = TensorDataset(torch.arange(23.0), torch.arange(23))
    for options in ({}, {"accumulate": 2}, {"drop_last": True}, {"start": 2, "accumulate": 3}):
        fast = epoch(dataset, 5, **options)
        slow = epoch([dataset[i] for i in range(23)], 5, **options)
        assert [share.counts for share in fast] == [share.counts for share in slow]
        for own, other in zip(fast, slow, strict=True):
            for batch, expected in zip(own.batches, other.batches, strict=True):
                assert all(a.equal(b) for a, b in zip(batch, expected, strict=True))


def test_double_is_what_the_engine_gets():
    [share] = epoch(Pictures(2), 2, double=True)
    assert [part.dtype for part in share.batches[0]] == [torch.float64, torch.int64]


def test_where_the_time_goes_is_marked():
    phases = Phases(CPU)
    for _ in loader(Pictures(8), World(), 2).epoch(0, 0, phases):
        pass
    found = phases.seconds()
    assert found["data"] > 0
    assert found["transfer"] > 0
    assert found["forward"] == 0


def loss(model, batch):
    return Outcome((model(batch[0]) ** 2).mean())


def test_B10_one_sample_left_for_batch_norm_fails_with_what_to_type(alone):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    make = lambda module: [SGD(module.parameters(), lr=0.1)]  # noqa: E731 - two lines
    engine = Single().engine(model, make, Objective(loss, loss), Settings(), alone)
    shares = epoch(Pictures(9), 4)
    assert [share.counts for share in shares] == [[4], [4], [1]]
    for share in shares[:2]:
        engine.train_step(share)
    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        engine.train_step(shares[2])
    text = describe(caught.value, 0, 2).text(1)
    assert "BatchNorm cannot normalise a part of one sample: set data.drop_last=true" in text
