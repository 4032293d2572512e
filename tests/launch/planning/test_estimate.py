"""The time of a step from its costs: tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.config import load
from launch.planning.candidates import Offer, candidates
from launch.planning.estimate import Costs, Tolls, estimate, reduced_s
from launch.planning.pace import Pace, pace
from parallel.pipeline.profile import LayerCost

NOTHING = Tolls(0.0, 0.0, 0.0, 0.0, 0.0, 1e15, 1e15, 1e15, 1e15)
LINE = {size: Pace(0.0, size * 1e-3, size * 2e-3, 0.006) for size in (1, 64)}
EVEN = [LayerCost(str(at), 1.0, 2.0, trained=1000, out=4000) for at in range(4)]
FREE = Costs(LINE, LINE, NOTHING, 4000, blocks=5, layers=EVEN, layer_samples=8)
MIB = 2**20


def way(name, devices=2, batch=64, is_cpu=True):
    offer = Offer(load(overrides=[f"train.global_batch_size={batch}"]), devices, is_cpu)
    families = candidates(offer, every=True)
    return next(each for [each] in families if each.name == name)


def step(name, costs=FREE, devices=2, is_cpu=True):
    return estimate(way(name, devices, is_cpu=is_cpu), 64, costs)


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [(1, 1.0), (64, 64.0), (32, 32.0), (128, 128.0), (0.5, 0.5)],
)
def test_a_pace_is_read_off_the_line_between_known_sizes(samples, wanted):
    found = pace(LINE, samples)
    assert found.forward_s == pytest.approx(wanted * 1e-3)
    assert found.update_s == pytest.approx(0.006)


def test_a_pace_of_one_known_size_grows_with_the_samples():
    assert pace({8: LINE[64]}, 16).compute_s == pytest.approx(2 * LINE[64].compute_s)


def test_a_step_too_small_to_be_on_the_line_is_not_free():
    steep = {8: Pace(0, 0.001, 0.001, 0), 16: Pace(0, 0.01, 0.01, 0)}
    assert pace(steep, 2).compute_s == pytest.approx(0.0005)


@pytest.mark.parametrize(
    ("size", "replicas", "wanted"),
    [(100 * MIB, 1, 0.0), (MIB, 2, 0.01), (MIB, 4, 0.015), (26 * MIB, 2, 0.26 + 2 * 0.001)],
)
def test_an_all_reduce_sends_its_bytes_around_a_ring_in_parcels(size, replicas, wanted):
    tolls = replace(NOTHING, reduced_per_s=100 * MIB, latency_s=0.001)
    assert reduced_s(size, replicas, tolls) == pytest.approx(wanted)


def test_without_tolls_ddp_halves_the_work_and_stages_only_wait_to_fill():
    single = step("single").step_s
    assert single == pytest.approx(64 * 3e-3 + 0.006)
    assert step("ddp").step_s == pytest.approx(32 * 3e-3 + 0.006)
    assert step("fsdp").step_s == pytest.approx(32 * 3e-3 + 0.003)
    four = step("pipeline m=4")
    assert four.step_s == pytest.approx(64 * 3e-3 / 2 * 5 / 4 + 0.003)
    assert four.plan.cuts == (2,)
    assert four.bubble == pytest.approx(0.2 * 0.12 / four.step_s)
    naive = step("model_parallel")
    assert naive.step_s == pytest.approx(64 * 3e-3 + 0.003)
    assert naive.bubble == pytest.approx(0.5 * 0.192 / naive.step_s)


def test_work_of_processes_that_compute_together_is_what_counts():
    slower = {size: replace(each, forward_s=2 * each.forward_s) for size, each in LINE.items()}
    busy = replace(FREE, together=slower)
    assert step("single", busy) == step("single")
    assert step("ddp", busy).step_s == pytest.approx(32 * 4e-3 + 0.006)


@pytest.mark.parametrize(
    ("name", "toll", "more"),
    [
        ("ddp", {"ddp_s": 0.01}, 0.01),
        ("ddp", {"reduced_per_s": 4e5}, 0.01),
        ("fsdp", {"block_s": 0.01}, 0.05),
        ("fsdp", {"gathered_per_s": 4e5}, 0.015),
        ("pipeline m=4", {"staged_s": 0.01}, 0.01),
        ("pipeline m=4", {"microbatch_s": 0.01}, 0.05),
        ("model_parallel", {"latency_s": 0.01}, 0.02),
        ("model_parallel", {"inside_per_s": 3.2e6}, 0.02),
    ],
)
def test_each_toll_is_paid_where_it_falls(name, toll, more):
    paid = step(name, replace(FREE, tolls=replace(NOTHING, **toll)))
    assert paid.step_s - step(name).step_s == pytest.approx(more, rel=1e-3)


def test_gpus_hide_what_fits_under_the_backward():
    slow = replace(FREE, tolls=replace(NOTHING, reduced_per_s=1e5), overlaps=True)  # 0.04 s
    assert step("ddp", slow).step_s == pytest.approx(step("ddp").step_s)
    slower = replace(slow, tolls=replace(NOTHING, reduced_per_s=4e4))  # 0.1 s of which 0.0512
    assert step("ddp", slower).communication == pytest.approx(
        (0.1 - 0.0512) / step("ddp", slower).step_s, rel=1e-3
    )


def test_replicas_of_a_pipeline_share_its_work_and_add_up_its_gradients():
    tolls = replace(NOTHING, ddp_s=0.01)
    hybrid = step("2x2 pipeline m=4", replace(FREE, tolls=tolls), devices=4)
    assert hybrid.step_s == pytest.approx(32 * 3e-3 / 2 * 5 / 4 + 0.003 + 0.01)


def test_more_microbatches_pay_until_each_costs_too_much():
    dear = replace(FREE, tolls=replace(NOTHING, microbatch_s=0.002))
    steps = {m: step(f"pipeline m={m}", dear).step_s for m in (2, 4, 8, 16)}
    assert steps[4] < steps[2]
    assert steps[8] < steps[16]


def test_accumulation_pays_for_what_each_round_costs():
    fixed = {size: Pace(0, 0.01 + size * 1e-3, 0.0, 0.0) for size in (1, 64)}
    costs = replace(FREE, alone=fixed)
    assert step("single accumulate=2", costs).step_s == pytest.approx(0.02 + 0.064)


def test_data_parallel_copies_the_model_each_step():
    slow = replace(FREE, tolls=replace(NOTHING, sent_per_s=4e5))
    found = step("data_parallel", slow, is_cpu=False)
    assert found.step_s == pytest.approx(32 * 3e-3 + 0.006 + 0.02)


@pytest.mark.parametrize(("node", "is_slow"), [(4, False), (2, False), (1, True)])
def test_stages_of_one_node_send_each_other_messages_over_its_own_links(node, is_slow):
    tolls = replace(NOTHING, sent_per_s=3.2e5)
    costs = replace(FREE, tolls=tolls, node=node)
    hybrid = step("2x2 pipeline m=4", costs, devices=4)
    free = step("2x2 pipeline m=4", devices=4)
    assert (hybrid.step_s > 1.1 * free.step_s) is is_slow
