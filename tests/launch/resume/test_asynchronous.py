"""Runs that save in the background end with what those have that save at once."""

from __future__ import annotations

import pytest

from launch.checkpoint import newest

BALLAST = 10_000_000  # 40 MB: still being written when the next steps are done


@pytest.fixture
def words(noisy):
    return (
        *noisy,
        "task._target_=tests.tasks.Full",
        f"task.ballast={BALLAST}",
        "checkpoint.asynchronous=true",
        "checkpoint.every_steps=4",
        "checkpoint.every_epochs=null",
    )


def whole(left, name):
    """The newest checkpoint; nothing broken and no stump is beside it."""
    folder = left(name).folder / "checkpoints"
    path, skipped = newest(folder)
    assert skipped == []
    assert [each for each in folder.iterdir() if each.name.startswith(".")] == []
    return path.name


@pytest.mark.parametrize("processes", [1, 2])
def test_the_bytes_are_those_of_a_run_that_saves_at_once(train, left, words, processes):
    words = (*words, "train.max_steps=9")
    for name in ("false", "true"):
        more = (f"checkpoint.asynchronous={name}", f"name={name}", "task.ballast=2000000")
        ended = train(*words, *more, processes=processes, timeout_s=100)
        assert ended.codes == [0] * processes, ended.output
        assert whole(left, name) == "step-00000009"
        assert left(name).steps() == [8, 9]
        assert [row["step"] for row in left(name).lines("checkpoint")] == [4, 8, 9]
    assert left("true").bytes() == left("false").bytes()


def test_loader_processes_may_start_while_one_is_written(train, left, words):
    words = (*words, "train.epochs=2", "data.workers=2", "data.persistent=false")
    words = (*words, "checkpoint.every_epochs=1", "checkpoint.every_steps=3", "name=again")
    ended = train(*words, processes=2, timeout_s=100)
    assert ended.codes == [0, 0], ended.output
    assert whole(left, "again") == "step-00000012"


@pytest.mark.parametrize(
    ("more", "codes", "state"),
    [
        (("task.told_at=5",), [75, 75], "stopped"),
        (("task.fails_at=5", "task.fails=1"), [1, 1], "failed"),
        (("task.fails_at=5", "task.fails=0"), [1, 1], "failed"),
    ],
    ids=["told to stop", "another rank fails", "its own task fails"],
)
def test_one_that_is_under_way_is_whole_however_the_run_ends(
    train, left, words, more, codes, state
):
    ended = train(*words, *more, "train.max_steps=9", "name=again", processes=2, timeout_s=100)
    assert ended.codes == codes, ended.output
    assert left("again").status["state"] == state
    wanted = 4 if state == "failed" else left("again").status["step"]
    assert whole(left, "again") == f"step-{wanted:08d}"


def test_killed_at_once_after_a_save_began_it_goes_on_from_a_whole_one(train, left, words):
    words = (*words, "train.max_steps=9", "name=again")
    killed = (*words, "task.told_at=5", "task.signal=9")
    assert train(*killed).codes == [-9]
    again = train(*killed)
    assert again.codes == [0], again.output
    assert left("again").lines("start")[-1]["step"] in (0, 4)
    assert whole(left, "again") == "step-00000009"
