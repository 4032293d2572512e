import pytest
import torch
import torch.distributed as dist

from parallel import World, join


def collectives(world):
    rank, size = world.rank, world.size
    total = sum(range(1, size + 1))
    own = torch.tensor([rank + 1.0, 10.0])
    assert world.sum(own) is own
    assert own.tolist() == [total, 10.0 * size]

    strided = torch.arange(6.0).reshape(2, 3).t() + 100 * rank  # [3, 2], not contiguous
    rows = world.gather(strided)
    assert rows.shape == (size, 3, 2)
    for other, row in enumerate(rows):
        assert row.equal(strided - 100 * rank + 100 * other)
    assert world.gather(torch.tensor(float(rank))).tolist() == list(range(size))
    wait = world.gather_later(torch.tensor([rank]))
    assert wait().tolist() == [[r] for r in range(size)]

    assert world.gather_objects({"rank": rank}) == [{"rank": r} for r in range(size)]
    assert world.share(f"decided by {rank}") == "decided by 0"
    assert world.share(None) is None

    tensors = [torch.full((3,), float(rank)), torch.tensor(rank), torch.zeros(0)]
    world.broadcast(tensors)
    assert [t.tolist() for t in tensors] == [[0.0] * 3, 0, []]
    world.broadcast([])
    world.barrier()

    assert world.is_main is (rank == 0)
    assert world.backend == (None if size == 1 else "gloo")
    assert (world.local_rank, world.local_size) == (rank, size)


def broadcast_views(world):
    table = torch.arange(24.0).reshape(8, 3)
    angles = torch.polar(torch.ones(5), torch.arange(5.0))
    wanted = [table[::2], table.t(), angles.real, angles.imag]
    ranks_own = [t if world.rank == 0 else t.clone() for t in (table, angles)]
    found = [ranks_own[0][::2], ranks_own[0].t(), ranks_own[1].real, ranks_own[1].imag]
    if world.rank:
        for tensor in ranks_own:
            tensor.zero_()
    world.broadcast(found)
    for tensor, expected in zip(found, wanted, strict=True):
        assert tensor.equal(expected)
    scattered = table.t() if world.rank else table.t().contiguous()
    world.broadcast([scattered.mul_(1 + world.rank)])
    assert scattered.equal(torch.arange(24.0).reshape(8, 3).t())


def test_a_view_is_broadcast_by_its_elements_not_by_the_memory_it_lies_in(in_ranks):
    in_ranks(2, broadcast_views)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_collective_means_the_same_in_a_world_of_any_size(in_ranks, size):
    in_ranks(size, collectives)


def test_A3_a_process_alone_is_a_world_and_opens_no_group():
    with join() as world:
        collectives(world)
        assert not dist.is_initialized()
    assert world == World()


def failures(world):
    if world.rank == 1:
        assert world.notes.report_failure("of rank 1") == "of rank 1"
        assert world.notes.report_failure("once more") == "of rank 1"
    world.barrier()
    if world.rank == 0:
        assert world.notes.report_failure("a follow-up") == "of rank 1"
    assert world.notes.first_failure(wait_s=5.0) == "of rank 1"
    world.barrier()
    if world.is_main:
        world.notes.acknowledge_failure()
    world.notes.await_acknowledgement(wait_s=5.0)


def test_A6_the_first_failure_is_kept(in_ranks):
    in_ranks(2, failures)


def test_A6_alone_a_failure_is_its_own(alone):
    assert alone.notes.report_failure("mine") == "mine"
    assert alone.notes.first_failure(wait_s=5.0) is None
    alone.notes.acknowledge_failure()


def joining(rank, store, fails):
    said = ""
    try:
        with join(rank=rank, size=2, store=store) as world:
            world.barrier()
            if fails and rank == 1:
                raise ValueError("boom")
            if not fails:
                world.barrier()
    except ValueError as error:
        said = f"still says {error}, "
    return f"{said}group open: {dist.is_initialized()}"


@pytest.mark.parametrize("fails", [False, True])
def test_A8_the_group_is_closed_after_the_block_also_when_a_rank_fails(children, tmp_path, fails):
    ended = children(2, joining, str(tmp_path / "store"), fails, timeout_s=20)
    assert [code for code, _ in ended] == [0, 0]
    assert all("group open: False" in text for _, text in ended)
    assert ("still says boom" in ended[1][1]) is fails


def leaving_early(rank, store):
    with join(rank=rank, size=2, store=store, timeout_s=30) as world:
        world.barrier()
        if rank == 1:
            return "left"
        try:
            world.barrier()
        except RuntimeError as error:
            return f"ended: {error}"


def test_A10_a_collective_ends_when_a_peer_has_left(children, tmp_path):
    ended = children(2, leaving_early, str(tmp_path / "store"), timeout_s=20)
    assert [code for code, _ in ended] == [0, 0]
    assert "ended: " in ended[0][1]
