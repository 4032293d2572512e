import torch

from parallel.tracker import Tracker

HOST = torch.device("cpu")


def test_a_storage_counts_once_until_its_last_tensor_is_gone():
    with Tracker(HOST) as tracker:
        whole = torch.ones(1000)
        part = whole[10:20]
        assert tracker.live == 4000
        del whole
        assert tracker.live == 4000
        del part
        assert tracker.live == 0
    assert tracker.peak == 4000


def test_what_autograd_keeps_is_alive():
    weight = torch.ones(1000, requires_grad=True)
    with Tracker(HOST) as tracker:
        out = (weight.exp() * 2).sum()
        kept = tracker.live
        out.backward()
        assert kept >= 4000 > tracker.live - weight.grad.nbytes


def test_a_storage_may_be_resized():
    with Tracker(HOST) as tracker:
        tensor = torch.empty(1000)
        tensor.untyped_storage().resize_(0)
        other = torch.ones(10)
        assert tracker.live == 40
        tensor.untyped_storage().resize_(4000)
        tensor.fill_(1)
        assert tracker.live == 4000 + other.nbytes
    assert tracker.peak == 4040


def test_sparse_tensors_are_their_parts():
    with Tracker(HOST) as tracker:
        places = torch.zeros(1, 3, dtype=torch.int64)
        found = torch.sparse_coo_tensor(places, torch.ones(3), (9,), check_invariants=True)
        coalesced = found.coalesce()
        assert tracker.live >= coalesced._values().nbytes + coalesced._indices().nbytes


def test_other_devices_are_not_counted():
    with Tracker(HOST) as tracker:
        there = torch.ones(1000, device="meta")
        assert there.is_meta
        assert tracker.live == 0


def test_kinds_are_told_apart_at_the_peak():
    with Tracker(HOST) as tracker:
        kept = torch.ones(100)
        tracker.add([kept], "parameters")
        passing = kept * 2
        del passing
        later = torch.ones(50)
    assert later.sum() == 50
    assert tracker.at_peak() == {"parameters": 400, "": 400}
    assert tracker.peak == 800
