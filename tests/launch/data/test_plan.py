import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from launch.data import check_batch, check_datasets, compare_datasets
from parallel import UsageError


class Endless(IterableDataset):
    def __iter__(self):
        yield 0


class Lengthless(Dataset):
    def __getitem__(self, i):
        return i


def data(samples):
    return TensorDataset(torch.zeros(samples, 1))


def test_B7_no_batch_at_all_is_refused_with_all_four_numbers():
    words = (
        "0 batches an epoch: 3 training samples, 2 processes, train.global_batch_size=4, "
        "data.drop_last=true; use train.global_batch_size=3 or less, or data.drop_last=false"
    )
    with pytest.raises(UsageError, match=words):
        check_datasets({"train": data(3)}, 4, 2, drop_last=True)
    check_datasets({"train": data(3)}, 4, 2, drop_last=False)
    check_datasets({"train": data(4)}, 4, 2, drop_last=True)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_B7_an_empty_split_is_refused(split):
    splits = {"train": data(4), split: data(0)}
    with pytest.raises(UsageError, match=f"the split '{split}' is empty: 0 samples"):
        check_datasets(splits, 4, 1, drop_last=False)


def test_B7_fewer_samples_than_processes_are_refused():
    with pytest.raises(UsageError, match="fewer samples than processes: 1 training samples, 2"):
        check_datasets({"train": data(1)}, 4, 2, drop_last=False)


def test_one_process_is_not_several():
    with pytest.raises(UsageError, match="than 1 process x"):
        check_batch(1, 1, 2)
    with pytest.raises(UsageError, match="3 training samples, 1 process, "):
        check_datasets({"train": data(3)}, 4, 1, drop_last=True)


def test_a_stream_is_not_asked_for_its_length():
    check_datasets({"train": Endless(), "valid": Endless()}, 4, 2, drop_last=True)


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        (data(3), r"datasets\(\) returned TensorDataset, wanted a dict with 'train'"),
        ({"valid": data(3)}, r"datasets\(\) returned \['valid'\], wanted a dict with 'train'"),
        ({"train": Lengthless()}, "'train' is a Lengthless without a length, wanted a Dataset"),
        ({"train": data(3), "valid": 5}, "'valid' is a int without a length"),
    ],
)
def test_what_is_no_dataset_is_refused(splits, words):
    with pytest.raises(UsageError, match=words):
        check_datasets(splits, 2, 1, drop_last=False)


def test_a_round_without_a_sample_is_refused_with_what_to_type():
    words = r"global_batch_size=5 is smaller than 3 processes x train.accumulate=2.*=6 or more"
    with pytest.raises(UsageError, match=words):
        check_batch(5, 3, 2)
    check_batch(6, 3, 2)


def unlike(world, by_rank, words):
    with pytest.raises(UsageError, match=words):
        compare_datasets(by_rank[world.rank], world)


SAME = {"train": data(4), "valid": data(2)}


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (
            {**SAME, "train": data(5)},
            "split 'train' differs by rank: 4 samples on rank 0, 2; 5 sam",
        ),
        (
            {**SAME, "valid": data(1)},
            "split 'valid' differs by rank: 2 .* 0, 2; 1 sample on rank 1",
        ),
        ({**SAME, "valid": Endless()}, "2 samples on rank 0, 2; a stream on rank 1; return the"),
        ({"train": data(4)}, "other splits by rank: train, valid on rank 0, 2; train on rank 1;"),
        (dict(reversed(SAME.items())), "train, valid on rank 0, 2; valid, train on rank 1;"),
    ],
)
def test_splits_that_differ_between_the_ranks_are_refused_on_all(in_ranks, odd, words):
    in_ranks(3, unlike, [SAME, odd, SAME], words)


def alike(world):
    compare_datasets(SAME, world)
    compare_datasets({"train": Endless()}, world)


def test_splits_that_are_alike_pass(in_ranks, alone):
    in_ranks(2, alike)
    alike(alone)
