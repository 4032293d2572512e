"""Loader processes change how fast batches come, and nothing else."""

import os
import random
from dataclasses import dataclass

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from launch.data import EvaluationBatches, Transfer, loader, seed_all
from launch.data.workers import WorkerSettings
from launch.failures import describe
from parallel import Phases, World

CPU = torch.device("cpu")


@dataclass
class Augmented(Dataset):
    """Samples with the three generators' numbers, and the process that made them."""

    bad: int | None = None

    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i == self.bad:
            raise KeyError(f"sample {i} has no label")
        drawn = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
        return i, torch.tensor(drawn, dtype=torch.float64), os.getpid()


class Stream(IterableDataset):
    def __iter__(self):
        for i in range(10):
            yield i, torch.rand(()), os.getpid()


@pytest.fixture
def made():
    """Whatever has loader processes, ended when the test is over."""
    kept = []
    yield kept
    for part in (part for own in kept for part in vars(own).values()):
        if isinstance(part, DataLoader) and part.num_workers and part._iterator is not None:
            part._iterator._shutdown_workers()


def settings(workers, start_method=None):
    return WorkerSettings(workers, start_method=start_method)


def training(made, dataset, workers, start_method=None, **options):
    shares = loader(dataset, World(), 4, settings=settings(workers, start_method), **options)
    made.append(shares)
    return shares


def epoch(shares, number, start=0):
    """Return the epoch's batches one after the other: ids, numbers, pids."""
    found = shares.epoch(number, start, Phases(CPU))
    return [batch for share in found for batch in share.batches]


def content(batches):
    return [(ids.tolist(), numbers.tolist()) for ids, numbers, _ in batches]


def pids(batches):
    return {int(pid) for _, _, own in batches for pid in own}


def states():
    numpys = numpy.random.get_state()
    return random.getstate(), tuple(numpys[1]), numpys[2], torch.get_rng_state().tolist()


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_J1_J3_J6_batches_are_the_same_bits_for_any_number_of_workers(made, start_method):
    here = training(made, Augmented(), 0, accumulate=2)
    there = training(made, Augmented(), 2, start_method, accumulate=2)
    for number in range(2):
        own, others = epoch(here, number), epoch(there, number)
        assert content(own) == content(others)
        assert pids(own) == {os.getpid()}
        assert len(pids(others)) == 2


def test_J1_J3_augmentation_differs_from_sample_to_sample_and_epoch_to_epoch(made):
    shares = training(made, Augmented(), 2, "fork")
    drawn = [
        number
        for count in range(3)
        for _, numbers in content(epoch(shares, count))
        for row in numbers
        for number in row
    ]
    assert len(drawn) == len(set(drawn)) == 3 * 10 * 3


def test_J3_augmentation_is_the_same_after_resuming_in_mid_epoch(made):
    whole = content(epoch(training(made, Augmented(), 2, "fork"), 1))
    assert content(epoch(training(made, Augmented(), 2, "fork"), 1, start=1)) == whole[1:]


def test_B13_J3_another_seed_draws_other_numbers(made):
    first, second = (
        content(epoch(training(made, Augmented(), 0, seed=seed), 0)) for seed in (0, 1)
    )
    assert {n for _, rows in first for n in rows[0]}.isdisjoint(
        n for _, rows in second for n in rows[0]
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Augmented(), Stream()], ids=["map", "stream"])
def test_the_training_processs_own_generators_are_not_touched(made, dataset, workers):
    seed_all(0)
    before = states()
    shares = training(made, dataset, workers, "fork" if workers else None)
    options = {"settings": settings(workers, "fork" if workers else None)}
    judged = EvaluationBatches(dataset, 4, 1, 0, Transfer(CPU), **options)
    made.append(judged)
    for number in range(2):
        assert len(epoch(shares, number)) == 3
        assert sum(count for _, count in judged) == 10
    assert states() == before


def test_I9_the_workers_of_the_first_epoch_serve_the_others(made):
    shares = training(made, Augmented(), 2, "fork")
    assert len({frozenset(pids(epoch(shares, number))) for number in range(4)}) == 1


def test_an_epoch_left_in_the_middle_does_not_disturb_the_next(made):
    shares = training(made, Augmented(), 2, "fork")
    next(shares.epoch(0, 0, Phases(CPU)))
    assert content(epoch(shares, 1)) == content(epoch(training(made, Augmented(), 0), 1))


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_is_the_same_bits_each_time_and_for_any_number_of_workers(made, workers):
    expected = content(batch for batch, _ in judge(made, 0))
    batches = judge(made, workers)
    for _ in range(2):
        assert content(batch for batch, _ in batches) == expected


def judge(made, workers):
    options = {"settings": settings(workers, "fork" if workers else None)}
    made.append(EvaluationBatches(Augmented(), 4, 1, 0, Transfer(CPU), **options))
    return made[-1]


def test_J7_an_error_in_a_worker_carries_kind_message_place_and_worker(made):
    shares = training(made, Augmented(bad=7), 2, "fork")
    with pytest.raises(KeyError, match="sample 7 has no label") as caught:
        epoch(shares, 0)
    failure = describe(caught.value, rank=1, step=2)
    assert failure.kind == "KeyError"
    assert "sample 7 has no label" in failure.message
    assert "in DataLoader worker process" in failure.message
    assert "test_workers.py" in failure.at
    assert "in __getitem__" in failure.at
    assert failure.text(2).startswith("rank 1 of 2 failed after step 2: KeyError: ")
