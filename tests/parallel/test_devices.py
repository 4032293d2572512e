import os

import pytest
import torch

from parallel import Place, WorldError, find_device
from parallel.devices import cores_for, own_cores


@pytest.fixture
def gpus(monkeypatch):
    """``gpus(n)``: torch reports n GPUs."""

    def report(count):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)

    return report


def test_A20_without_a_gpu_auto_is_the_cpu_and_gloo(gpus):
    gpus(0)
    assert find_device(Place()) == (torch.device("cpu"), "gloo")


def test_A20_nccl_without_a_gpu_is_refused_in_one_line(gpus):
    gpus(0)
    with pytest.raises(WorldError, match=r"backend=nccl needs a GPU.*use launch.backend=auto") as e:
        find_device(Place(), backend="nccl")
    assert "\n" not in str(e.value)


def test_A20_nccl_on_a_cpu_that_was_asked_for_is_refused(gpus):
    gpus(2)
    with pytest.raises(WorldError, match="backend=nccl needs a GPU"):
        find_device(Place(), "cpu", "nccl")


def test_a_gpu_that_is_not_there_is_refused(gpus):
    gpus(0)
    with pytest.raises(WorldError, match=r"launch.device=cuda wants a GPU, but torch sees 0 GPUs"):
        find_device(Place(), "cuda")


def test_the_cpu_can_be_chosen_beside_gpus(gpus):
    gpus(2)
    assert find_device(Place(), "cpu") == (torch.device("cpu"), "gloo")


def test_each_of_torchruns_processes_has_its_own_gpu(gpus):
    gpus(2)
    place = Place(3, 4, 1, 2, "torchrun")
    assert find_device(place) == (torch.device("cuda", 1), "nccl")
    assert find_device(place, backend="gloo") == (torch.device("cuda", 1), "gloo")


def test_F3_one_visible_gpu_for_each_task_is_number_0_for_every_task(gpus):
    gpus(1)
    assert find_device(Place(1, 2, 1, 2, "srun")) == (torch.device("cuda", 0), "nccl")


def test_F3_torchruns_processes_do_not_share_one_gpu(gpus):
    gpus(1)
    with pytest.raises(WorldError, match=r"2 processes on this node want a GPU each.*sees 1 GPUs"):
        find_device(Place(1, 2, 1, 2, "torchrun"))


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "by hand"])
def test_F3_F4_more_processes_than_gpus_are_refused_with_both_numbers(gpus, launcher):
    gpus(2)
    words = r"4 processes.*torch sees 2 GPUs \(CUDA_VISIBLE_DEVICES=0,5\); use --nproc_per_node=2"
    with pytest.raises(WorldError, match=words):
        find_device(Place(3, 4, 3, 4, launcher, visible="0,5"))


def test_processes_divide_the_cores_and_give_them_back():
    before = os.sched_getaffinity(0)
    shares = [cores_for(Place(rank, 2, rank, 2, "torchrun")) for rank in (0, 1)]
    assert not set(shares[0]) & set(shares[1])
    with own_cores(Place(1, 2, 1, 2, "torchrun")):
        assert os.sched_getaffinity(0) == set(shares[1]) if shares[1] else before
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("place", [Place(), Place(0, 2, 0, 2, "srun")])
def test_a_process_alone_or_bound_by_srun_keeps_its_cores(place):
    before = os.sched_getaffinity(0)
    with own_cores(place):
        assert os.sched_getaffinity(0) == before


def test_more_processes_than_cores_are_not_bound():
    many = len(os.sched_getaffinity(0)) + 1
    assert cores_for(Place(0, many, 0, many, "torchrun")) == []
