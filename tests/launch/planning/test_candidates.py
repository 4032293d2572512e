"""Which ways a machine allows: tables."""

from __future__ import annotations

import pytest

from launch.config import load
from launch.planning.candidates import Offer, candidates

PIPELINES = ["pipeline m=2", "pipeline m=4", "pipeline m=8", "pipeline m=16"]


def names(offer, every=False):
    return [tuple(each.name for each in family) for family in candidates(offer, every)]


@pytest.mark.parametrize(
    ("devices", "is_cpu", "wanted"),
    [
        (1, True, [("single",)]),
        (1, False, [("single",)]),
        (2, True, [("single",), ("ddp",), ("fsdp",), ("model_parallel",), tuple(PIPELINES)]),
        (2, False, [("single",), ("data_parallel",), ("ddp",), ("fsdp",), ("model_parallel",),
                    tuple(PIPELINES)]),
        (3, True, [("single",), ("ddp",), ("fsdp",), ("model_parallel",), tuple(PIPELINES)]),
        (4, True, [("single",), ("ddp",), ("fsdp",), ("model_parallel",), tuple(PIPELINES),
                   tuple(f"2x2 {each}" for each in PIPELINES)]),
    ],
)  # fmt: skip
def test_the_ways_follow_from_the_number_of_devices(devices, is_cpu, wanted):
    assert names(Offer(load(), devices, is_cpu)) == wanted


def test_microbatches_are_no_more_than_the_batch_has_samples():
    config = load(overrides=["train.global_batch_size=9"])
    assert names(Offer(config, 2, True))[-1] == tuple(PIPELINES[:3])
    hybrids = names(Offer(config, 4, True))[-1]
    assert hybrids == ("2x2 pipeline m=2", "2x2 pipeline m=4")
    tiny = load(overrides=["train.global_batch_size=2"])
    assert names(Offer(tiny, 4, True))[-1] == ("2x2 pipeline m=1",)


def test_a_hybrid_has_replicas_of_two_stages():
    *_, hybrids = candidates(Offer(load(), 4, True))
    first = hybrids[0]
    assert first.words == (
        "strategy.name=pipeline", "strategy.stages=2", "strategy.microbatches=2",
    )  # fmt: skip
    assert (first.processes, first.replicas, first.stages, first.rounds) == (4, 2, 2, 2)
    assert first.sizes(64) == [16, 16]
    assert first.sizes(7) == [2, 2]


def test_every_adds_each_count_gpipe_and_accumulation():
    found = names(Offer(load(), 2, True), every=True)
    assert all(len(family) == 1 for family in found)
    assert {("pipeline m=8",), ("gpipe pipeline m=4",), ("ddp accumulate=2",)} <= set(found)
    [ddp] = next(f for f in candidates(Offer(load(), 2, True), True) if f[0].accumulate == 2)[:1]
    assert ddp.words[-1] == "train.accumulate=2"


def test_what_cannot_be_cut_stays_with_the_reason():
    found = candidates(Offer(load(), 2, True, uncut="no layers"))
    said = {family[0].name: family[0].problem for family in found}
    assert said == {
        "single": "", "ddp": "", "fsdp": "", "model_parallel": "no layers",
        "pipeline m=2": "no layers",
    }  # fmt: skip


def test_a_batch_that_is_too_small_is_said():
    found = candidates(Offer(load(overrides=["train.global_batch_size=1"]), 2, True))
    said = {family[0].name: family[0].problem for family in found}
    assert "train.global_batch_size=1 is smaller than 2 processes" in said["ddp"]
    assert said["single"] == ""


def test_keys_of_the_named_strategy_are_kept():
    words = ["strategy.name=pipeline", "strategy.checkpoint_every=2", "strategy.microbatches=3"]
    *_, pipelines = candidates(Offer(load(overrides=words), 2, True))
    assert [each.strategy.checkpoint_every for each in pipelines] == [2, 2, 2, 2]
    assert [each.rounds for each in pipelines] == [2, 4, 8, 16]
