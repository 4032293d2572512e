"""Memory by way and batch, and the largest batch that fits."""

from __future__ import annotations

import pytest

from launch.config import load
from launch.planning.candidates import Offer, candidates
from launch.planning.room import (
    LARGEST,
    SAFE,
    UnpredictableError,
    fits,
    largest,
    largest_batch,
    need,
    with_split,
)
from launch.planning.subject import Subject
from parallel import World
from parallel.memory import predict

TASKS = "task._target_=tests.launch.planning.planned_tasks"


@pytest.fixture(scope="module")
def digits():
    return Subject.of(load(overrides=["task.width=16"]))


def way(subject, name, devices=2):
    families = candidates(Offer(subject.config, devices, True, subject.uncut))
    return next(each for family in families for each in family if each.name == name)


@pytest.mark.parametrize(
    ("taken", "least", "wanted"),
    [
        (lambda batch: 100 + 10 * batch, 1, 90),
        (lambda batch: 100 + 10 * batch, 4, 88),
        (lambda batch: 100 + 10 * batch + batch**2 // 50, 1, 77),  # not quite affine
        (lambda batch: 2000, 1, 0),
        (lambda batch: 100 + 100 * batch, 2, 8),
        (lambda batch: 1000 if batch <= 2 else 5000, 2, 2),
        (lambda batch: 10, 1, LARGEST),
    ],
)
def test_the_largest_batch_is_found_and_verified(taken, least, wanted):
    found = largest(taken, least, 32, 1000)
    assert found % least == 0
    assert found == 0 or taken(found) <= 1000
    assert found == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize(
    ("bytes", "limit", "wanted"),
    [((80, 70), 100, True), ((95, 70), 100, False), ((80,), None, None), ((), 100, None)],
)
def test_a_way_fits_where_its_fullest_device_keeps_a_tenth(bytes, limit, wanted):
    assert fits(bytes, limit) is wanted


def test_ways_differ_in_what_each_device_needs(digits):
    single, ddp = need(digits, way(digits, "single")), need(digits, way(digits, "ddp"))
    assert len(single) == 1
    assert len(ddp) == 2
    stages = need(digits, way(digits, "model_parallel"))
    assert stages[0] != stages[1]
    assert max(need(digits, way(digits, "single"), 512)) > 2 * max(single)


def test_the_largest_batch_of_real_predictions_is_the_last_that_fits(digits):
    ddp, limit = way(digits, "ddp"), 64_000_000
    batch = largest_batch(digits, ddp, limit)
    assert batch % 2 == 0
    assert max(need(digits, ddp, batch)) <= SAFE * limit
    assert max(need(digits, ddp, round(1.05 * batch))) > SAFE * limit


def test_a_cut_that_was_measured_is_the_one_that_is_predicted(digits):
    pipeline = way(digits, "pipeline m=4")
    early, late = (need(digits, with_split(pipeline, (at,))) for at in (2, 11))
    assert early[0] < late[0]
    assert with_split(way(digits, "ddp"), (2,)) == way(digits, "ddp")


def test_a_task_that_reads_numbers_is_said_to_be_unpredictable():
    subject = Subject.of(load(overrides=[f"{TASKS}.Reads"]))
    with pytest.raises(UnpredictableError, match="its memory cannot be predicted"):
        need(subject, way(subject, "single"))


def test_a_task_without_layers_says_that_it_cannot_be_cut():
    subject = Subject.of(load(overrides=[f"{TASKS}.Reads"]))
    assert "define loss_of_outputs(self, outputs, batch)" in subject.uncut


def test_a_stream_gives_batches_too():
    subject = Subject.of(load(overrides=[f"{TASKS}.Streamed"]))
    assert subject.samples is None
    assert subject.batch(5)[0].shape == (5, 4)
    assert subject.batch(500)[0].shape == (500, 4)


@pytest.mark.parametrize("name", ["pipeline m=16", "gpipe pipeline m=8"])
def test_what_all_rounds_need_is_told_by_few(digits, name):
    families = candidates(Offer(digits.config, 2, True), every=True)
    [long] = next(family for family in families if family[0].name == name)
    batches = digits.batches(long.sizes(64))
    whole = predict(long.strategy, digits.work(World(size=2), batches[0]), batches)
    assert need(digits, long) == pytest.approx([each.need for each in whole], rel=1e-3)
