"""When a run saves, and which of its checkpoints is the best."""

from __future__ import annotations

import os
import shutil

import pytest


def test_the_best_one_stays_the_best_after_a_resume(train, left, noisy):
    words = (*noisy, "name=again", "checkpoint.best.metric=valid/loss", "checkpoint.keep=1")
    words = (*words, "evaluate.every_steps=1")
    train(*words, "train.max_steps=5")
    best = os.readlink(left("again").folder / "checkpoints/best")
    value = left("again").state["best"]["value"]
    rows = {row["step"]: row["metrics"]["loss"] for row in left("again").lines("evaluation")}
    assert value == min(rows.values()) == rows[int(best[5:])]
    ended = train(*words, "train.max_steps=9", processes=1)
    assert ended.codes == [0], ended.output
    rows = {row["step"]: row["metrics"]["loss"] for row in left("again").lines("evaluation")}
    assert len(rows) == 9
    best = int(os.readlink(left("again").folder / "checkpoints/best")[5:])
    assert rows[best] == min(rows.values())
    assert left("again").steps() == sorted({best, 9})


def test_a_best_one_of_another_folder_or_deleted_no_longer_counts(train, left, noisy):
    words = (*noisy, "evaluate.every_steps=1", "checkpoint.best.metric=valid/loss")
    words = (*words, "checkpoint.best.mode=max")  # the loss falls: the first one is the best
    train(*words, "train.max_steps=3", "name=old")
    best = left("old").folder / "checkpoints/best"
    first = os.readlink(best)
    shutil.rmtree(best.resolve())
    for name, more in (("old", ()), ("new", ("checkpoint.resume=runs/old",))):
        ended = train(*words, "train.max_steps=4", f"name={name}", *more)
        assert ended.codes == [0], ended.output
        now = os.readlink(left(name).folder / "checkpoints/best")
        assert now == "step-00000004" != first
        if name == "old":
            shutil.rmtree(best.parent / now)


@pytest.mark.parametrize("metric", ["train/loss", "test/loss", "loss"])
def test_a_best_metric_of_no_split_is_refused_before_the_first_step(train, noisy, tmp_path, metric):
    ended = train(*noisy, f"checkpoint.best.metric={metric}", "task._target_=tests.tasks.Ready")
    assert ended.codes == [2], ended.output
    wanted = f"checkpoint.best.metric={metric} is of a split that is not evaluated; the task has"
    assert wanted in ended.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        (("checkpoint.every_epochs=null",), [13]),
        (("checkpoint.every_epochs=2",), [12, 13]),
        (("checkpoint.every_steps=5", "checkpoint.every_epochs=null"), [5, 10, 13]),
        (("checkpoint.every_steps=5",), [5, 6, 10, 12, 13]),
    ],
)
def test_it_saves_as_often_as_asked_and_at_the_end(train, left, noisy, more, steps):
    ended = train(*noisy, "name=again", "train.max_steps=13", "checkpoint.keep=9", *more)
    assert ended.codes == [0]
    assert left("again").steps() == steps


def test_it_saves_every_so_many_minutes(train, left, noisy):
    words = (*noisy, "checkpoint.every_epochs=null", "checkpoint.every_minutes=0.01", "name=again")
    ended = train(*words, "task.slow_s=0.15", "checkpoint.keep=99", "train.max_steps=14")
    assert ended.codes == [0], ended.output
    assert 3 <= len(left("again").steps()) <= 5  # 2.1 s in all, 0.6 s apart
