from itertools import chain, product

import pytest
import torch

from launch.data import GlobalBatchSampler, seed_all


def walk(samples, size, replicas=1, accumulate=1, epoch=0, start=0, **options):
    """Return for each global batch what each replica takes of it: its ``StepParts``."""
    samplers = [
        GlobalBatchSampler(
            samples, size, replicas=replicas, replica=r, accumulate=accumulate, **options
        )
        for r in range(replicas)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch, start)
    steps = [list(sampler) for sampler in samplers]
    assert len({len(own) for own in steps}) == 1, "replicas take different numbers of steps"
    return list(zip(*steps, strict=True))


def ids(parts):
    """Return the samples of these parts that count."""
    return [i for part in parts if part.count for i in part.indices.tolist()]


def global_batches(steps):
    return [sorted(i for own in step for i in ids(own.parts)) for step in steps]


def order(samples, epoch=0, seed=0):
    sampler = GlobalBatchSampler(samples, samples, seed=seed)
    sampler.set_epoch(epoch)
    return sampler.permutation().tolist()


LEGAL = [
    (n, b, r, a)
    for n, b, r, a in product(range(1, 10), range(1, 6), range(1, 5), range(1, 4))
    if b >= r * a
]


def test_the_picture_at_the_top_of_the_file():
    p = order(10)
    first, second = walk(10, 7, replicas=2)
    assert [ids(own.parts) for own in first] == [[p[0], p[2], p[4], p[6]], [p[1], p[3], p[5]]]
    assert [ids(own.parts) for own in second] == [[p[7], p[9]], [p[8]]]
    assert [own.total for own in first + second] == [7, 7, 3, 3]


def test_B1_B2_every_sample_comes_once_an_epoch_whatever_divides_it():
    for n, b, r, a in LEGAL:
        steps = walk(n, b, r, a)
        assert sorted(chain(*global_batches(steps))) == list(range(n)), (n, b, r, a)
        assert len(steps) == -(-n // b)


def test_the_kth_global_batch_is_the_same_set_for_any_replicas_and_accumulation():
    for n, b, r, a in LEGAL:
        p = order(n)
        expected = [sorted(p[k : k + b]) for k in range(0, n, b)]
        steps = walk(n, b, r, a)
        assert global_batches(steps) == expected, (n, b, r, a)
        assert [{own.total for own in step} for step in steps] == [{len(e)} for e in expected]


def test_rounds_are_never_empty_and_apart_by_one_sample_at_most():
    for n, b, r, a in LEGAL:
        for step in walk(n, b, r, a):
            for own in step:
                sizes = [len(part.indices) for part in own.parts]
                assert 1 <= len(sizes) <= a
                assert min(sizes) >= 1
                assert max(sizes) - min(sizes) <= 1
                assert len(sizes) == min(a, max(1, sum(sizes)))


def test_ranks_in_step_are_told_of_the_most_rounds_of_any():
    for n, b, r, a in LEGAL:
        sampler = GlobalBatchSampler(n, b, replicas=r, replica=r - 1, accumulate=a)
        for step in walk(n, b, r, a):
            assert sampler.rounds(step[-1]) == max(len(own.parts) for own in step)


def test_who_has_no_sample_borrows_what_replica_0_computes_last():
    for n, b, r, a in LEGAL:
        for step in walk(n, b, r, a):
            for own in step:
                if own.parts[0].count:
                    assert [part.count for part in own.parts] == [
                        len(part.indices) for part in own.parts
                    ]
                else:
                    [borrowed] = own.parts
                    assert borrowed.indices.equal(step[0].parts[-1].indices)


def test_B3_two_replicas_take_half_of_each_of_8_batches():
    for replicas, each in ((1, 8), (2, 4)):
        steps = walk(64, 8, replicas)
        assert len(steps) == 8
        assert {len(ids(own.parts)) for step in steps for own in step} == {each}


def test_B1_orders_differ_from_epoch_to_epoch_and_come_again():
    orders = [tuple(order(32, epoch)) for epoch in range(5)]
    assert len(set(orders)) == 5
    assert orders == [tuple(order(32, epoch)) for epoch in range(5)]
    assert global_batches(walk(32, 8, 2, epoch=1)) != global_batches(walk(32, 8, 2, epoch=0))


def test_B13_the_seed_reaches_the_order_on_every_replica():
    found = {seed: global_batches(walk(32, 8, 2, seed=seed)) for seed in (1, 2)}
    assert found[1] != found[2]
    assert found[1] == global_batches(walk(32, 8, 1, seed=1))


def test_the_order_is_none_of_the_global_generators_business():
    seed_all(1)
    first, state = order(32), torch.get_rng_state()
    seed_all(2)
    assert order(32) == first
    assert not torch.get_rng_state().equal(state)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_drop_last_cuts_after_the_permutation(replicas):
    steps = walk(10, 4, replicas, drop_last=True)
    p = order(10)
    assert global_batches(steps) == [sorted(p[0:4]), sorted(p[4:8])]
    cut = {frozenset(range(10)) - set(order(10, epoch)[:8]) for epoch in range(5)}
    assert len(cut) > 1, "the same samples are never seen"
    assert len(GlobalBatchSampler(10, 4, drop_last=True)) == 2
    assert walk(3, 4, drop_last=True) == []


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_B2_an_epoch_goes_on_where_it_stopped(start):
    for replicas, accumulate in ((1, 1), (2, 2), (3, 1)):
        whole = walk(10, 4, replicas, accumulate, epoch=3)
        rest = walk(10, 4, replicas, accumulate, epoch=3, start=start)
        assert global_batches(rest) == global_batches(whole)[start:]
        seeds = [[p.seed for own in step for p in own.parts] for step in whole]
        assert [[p.seed for own in step for p in own.parts] for step in rest] == seeds[start:]


def test_J1_J3_every_part_of_every_epoch_has_a_seed_of_its_own():
    seeds = [
        part.seed
        for epoch in range(3)
        for step in walk(10, 4, 2, 2, epoch=epoch)
        for own in step
        for part in own.parts
    ]
    assert len(set(seeds)) == len(seeds)
