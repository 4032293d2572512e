"""No room for a checkpoint: the run says so and ends, or goes on; what was saved stays whole."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from launch.checkpoint import newest

NEXT = "make room or mend its folder, and give the same command again; to train on where that"
BOTH = pytest.mark.parametrize("asynchronous", ["false", "true"])


@pytest.fixture
def words(noisy):
    return (
        *noisy,
        "task._target_=tests.tasks.Full",
        "checkpoint.every_steps=2",
        "checkpoint.every_epochs=null",
        "train.max_steps=9",
        "task.slow_s=0.1",  # a write ends before the disk is full
        "name=again",
    )


def failures(output):
    return [line for line in output.splitlines() if "cannot write checkpoint" in line]


def hidden(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@BOTH
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_D23_without_room_all_ranks_end_with_one_line_and_the_old_one_is_whole(
    train, left, words, processes, asynchronous
):
    words = (*words, f"checkpoint.asynchronous={asynchronous}", "task.full_at=5")
    ended = train(*words, processes=processes, timeout_s=40)
    assert ended.codes == [1] * processes, ended.output
    [line] = failures(ended.output)
    where = "runs/again/checkpoints/step-00000006: File too large; the checkpoints before it are"
    assert f"cannot write checkpoint {where} untouched; {NEXT}" in line
    assert line.startswith("the run failed after step ")
    assert ended.outputs[0].splitlines()[-1] == line
    folder = left("again").folder / "checkpoints"
    found, skipped = newest(folder)
    assert (found.name, skipped, hidden(folder)) == ("step-00000004", [], [])
    assert os.readlink(folder / "last") == "step-00000004"
    assert left("again").status["state"] == "failed"
    assert "File too large" in left("again").status["reason"]
    assert train(*words, processes=processes).codes == [0] * processes
    assert left("again").lines("start")[-1]["step"] == 4


@BOTH
def test_D23_told_to_go_on_it_says_so_each_time_and_saves_the_last(
    train, left, words, asynchronous
):
    words = (*words, f"checkpoint.asynchronous={asynchronous}", "checkpoint.on_error=go_on")
    ended = train(*words, "task.full_at=3", "task.free_at=8", processes=2, timeout_s=40)
    assert ended.codes == [0, 0], ended.output
    told = failures(ended.output)
    assert [line.partition(": File too large")[0][-1] for line in told] == ["4", "6"]
    assert all(line.endswith("training goes on without it") for line in told)
    assert left("again").steps() == [8, 9]
    assert hidden(left("again").folder / "checkpoints") == []


@BOTH
@pytest.mark.parametrize("last", [8, pytest.param(9, marks=pytest.mark.slow)])
def test_D23_told_to_go_on_it_fails_where_the_last_cannot_be_written(
    train, left, words, last, asynchronous
):
    words = (*words, f"checkpoint.asynchronous={asynchronous}", "checkpoint.on_error=go_on")
    ended = train(*words, "task.full_at=5", f"train.max_steps={last}", processes=2, timeout_s=40)
    assert ended.codes == [1, 1], ended.output
    *told, end = failures(ended.output)
    assert len(told) == 2
    assert f"step-0000000{last}: File too large" in end
    assert end.startswith(f"the run failed after step {last}: ")
    assert left("again").steps() == [2, 4]


def test_a_file_in_the_folders_place_ends_the_run(train, left, words):
    ended = train(*words, "task.full_at=5", "task.blocked=true", processes=2, timeout_s=40)
    assert ended.codes == [1, 1], ended.output
    [line] = failures(ended.output)
    assert f"/step-00000006: File exists; the checkpoints before it are untouched; {NEXT}" in line
    assert newest(left("again").folder / "moved")[0].name == "step-00000004"


@pytest.fixture
def mounted(tmp_path):
    """A small disk in the place of a run's checkpoints, with what was there; root's to make."""
    folder = tmp_path / "runs/again/checkpoints"

    def mount(options):
        held = shutil.copytree(folder, tmp_path / "held", symlinks=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=1600k", "tmpfs", folder]
        if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("only root can mount a small disk")
        shutil.copytree(held, folder, symlinks=True, dirs_exist_ok=True)
        subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)

    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    ("options", "reason"), [("rw", "No space left on device"), ("ro", "Read-only file system")]
)
@pytest.mark.parametrize("on_error", ["stop", "go_on"])
def test_D23_a_small_or_read_only_disk_is_named(
    train, left, words, mounted, options, reason, on_error
):
    words = (*words, f"checkpoint.on_error={on_error}")
    assert train(*words, "train.max_steps=3", "checkpoint.keep=1").codes == [0]
    mounted(options)
    ended = train(*words, "train.max_steps=5", processes=2, timeout_s=40)
    assert ended.codes == [1, 1], ended.output
    told = failures(ended.output)
    assert len(told) == (1 if on_error == "stop" else 2)
    assert f"step-0000000{4 if on_error == 'stop' else 5}: {reason}" in told[-1]
    folder = left("again").folder / "checkpoints"
    assert newest(folder)[0].name == "step-00000003"
    assert hidden(folder) == []
