import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from launch.folder import FolderError, RunFolder, inspect, open_folder
from launch.folder.lock import Lock, Owner

CONFIG = {
    "name": "digits",
    "seed": 0,
    "task": {"_target_": "launch.tasks.digits.Digits", "width": 32},
    "train": {"epochs": 20, "max_steps": None, "max_minutes": 1e-5, "global_batch_size": 64},
    "data": {"workers": 0, "drop_last": False},
}
TEXT = OmegaConf.to_yaml(CONFIG)


def changed(key, value):
    config = OmegaConf.create(CONFIG)
    OmegaConf.update(config, key, value)
    return OmegaConf.to_container(config)


def a_run(path, **status):
    """Leave behind what a run leaves."""
    with open_folder(path, TEXT) as folder:
        if status:
            folder.status.write_text(json.dumps(status))
    return folder


def in_child(work):
    """Run ``work`` in a process of its own; returns its pid. Its answer is the exit code."""
    pid = os.fork()
    if pid == 0:
        os._exit(work() or 0)
    return pid


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_for(path):
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def a_dead_lock(path, **other):
    """Write the lock of a process that has ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    owner = {**vars(Owner.here()), "pid": child.pid, **other}
    path.write_text(json.dumps(owner))
    return owner


def test_a_folder_is_made_with_its_parents_and_says_where_things_lie(tmp_path):
    with open_folder(tmp_path / "runs" / "digits", TEXT) as folder:
        assert folder.config.read_text() == TEXT
        assert folder.ranks.is_dir()
        assert json.loads(folder.lock.read_text())["pid"] == os.getpid()
    names = sorted(p.name for p in folder.path.iterdir())
    assert names == ["config.yaml", "ranks"]
    assert folder.checkpoints == tmp_path / "runs" / "digits" / "checkpoints"
    assert (folder.metrics.name, folder.status.name, folder.stop.name) == (
        "metrics.jsonl", "status.json", "STOP",
    )  # fmt: skip


def test_absent_and_empty_folders_are_new_and_looking_changes_nothing(tmp_path):
    assert inspect(tmp_path / "absent", CONFIG).state == "new"
    assert inspect(tmp_path, CONFIG).state == "new"
    assert list(tmp_path.iterdir()) == []


def test_a_run_killed_before_its_config_was_written_is_new(tmp_path):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "lock").write_text("")
    (tmp_path / "slurm-12.out").write_text("")
    assert inspect(tmp_path, CONFIG).state == "new"


def test_a_completed_run_is_told_with_its_numbers_and_limits(tmp_path):
    metrics = {"valid/accuracy": 0.97}
    a_run(tmp_path, state="completed", step=460, epoch=20, reason="20 epochs", metrics=metrics)
    found = inspect(tmp_path, CONFIG)
    assert (found.state, found.step, found.epoch) == ("completed", 460, 20)
    assert found.metrics == metrics
    assert found.limits == {"epochs": 20, "max_steps": None, "max_minutes": 1e-5}


@pytest.mark.parametrize("state", ["running", "stopped", "failed"])
def test_any_other_end_may_go_on(tmp_path, state):
    a_run(tmp_path, state=state, step=17, epoch=1, reason="SIGTERM", metrics={})
    found = inspect(tmp_path, CONFIG)
    assert (found.state, found.last, found.step, found.reason) == (
        "interrupted", state, 17, "SIGTERM",
    )  # fmt: skip


@pytest.mark.parametrize("status", [None, "", "[1]", '{"state": '])
def test_a_run_with_no_readable_status_may_go_on(tmp_path, status):
    folder = a_run(tmp_path)
    if status is not None:
        folder.status.write_text(status)
    assert (inspect(tmp_path, CONFIG).state, inspect(tmp_path, CONFIG).last) == (
        "interrupted",
        None,
    )


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("task.width", 64, r"task\.width: 32 there, 64 here"),
        ("task.depth", 3, r"task\.depth: absent there, 3 here"),
        (
            "task._target_",
            "mine.Task",
            r'_target_: "launch.tasks.digits.Digits" there, "mine.Task"',
        ),
        ("seed", 1, r"seed: 0 there, 1 here"),
        ("data.drop_last", True, r"data\.drop_last: false there, true here"),
        ("train.global_batch_size", 32, r"train\.global_batch_size: 64 there, 32 here"),
    ],
)
def test_h11_another_experiment_is_refused_with_both_values_and_a_free_name(
    tmp_path, key, value, words
):
    a_run(tmp_path / "digits")
    (tmp_path / "digits-2").mkdir()
    with pytest.raises(FolderError, match=words) as error:
        inspect(tmp_path / "digits", changed(key, value))
    assert "name=digits-3" in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"), [("train.epochs", 40), ("data.workers", 2), ("name", "x"), ("optimizer", {})]
)
def test_everything_else_may_change(tmp_path, key, value):
    a_run(tmp_path)
    assert inspect(tmp_path, changed(key, value)).state == "interrupted"


def test_a_file_and_a_path_under_a_file_are_refused(tmp_path):
    (tmp_path / "digits").write_text("mine")
    for path in (tmp_path / "digits", tmp_path / "digits" / "below"):
        with pytest.raises(FolderError, match="is a file, or lies under one; use name="):
            inspect(path, CONFIG)


def test_a_link_to_nothing_is_refused(tmp_path):
    (tmp_path / "digits").symlink_to("gone")
    with pytest.raises(FolderError, match="is a link to nothing"):
        inspect(tmp_path / "digits", CONFIG)


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(
        FolderError, match=r"is not a run folder: it holds thesis\.tex but no config"
    ):
        inspect(tmp_path, CONFIG)


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2\n", "", "\x00"])
def test_an_unreadable_config_is_refused(tmp_path, text):
    a_run(tmp_path).config.write_text(text)
    with pytest.raises(
        FolderError, match=r"cannot read .*config\.yaml.*mend it, or start anew: name="
    ):
        inspect(tmp_path, CONFIG)


def test_a_live_runs_folder_is_refused_with_host_and_pid(tmp_path):
    def hold():
        with open_folder(tmp_path, TEXT) as folder:
            folder.stop.write_text("")
            signal.pause()

    pid = in_child(hold)
    wait_for(tmp_path / "STOP")
    words = rf"in use by process {pid} on {Owner.here().host} since .*name=OTHER"
    with pytest.raises(FolderError, match=words), open_folder(tmp_path, TEXT):
        pass
    assert Owner.of(tmp_path / "lock").pid == pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert Owner.of(tmp_path / "lock").is_alive() is False  # nobody has waited for it yet
    assert exit_code(pid) == -signal.SIGKILL
    with open_folder(tmp_path, TEXT) as folder:
        assert Owner.of(folder.lock).pid == os.getpid()


def test_a_dead_runs_lock_is_taken_over_at_once(tmp_path):
    a_dead_lock(tmp_path / "lock")
    with open_folder(tmp_path, TEXT) as folder:
        assert Owner.of(folder.lock).pid == os.getpid()
    assert not folder.lock.exists()


def test_a_recycled_pid_is_not_mistaken_for_the_dead_run(tmp_path):
    mine = Owner.here()
    (tmp_path / "lock").write_text(json.dumps({**vars(mine), "started": mine.started - 1}))
    with open_folder(tmp_path, TEXT) as folder:
        assert Owner.of(folder.lock) == folder.held.owner


@pytest.mark.parametrize("text", [None, "", "{}", '{"pid": "x"}', '{"host": "h", "pid": -1}'])
def test_a_lock_from_elsewhere_is_dead_only_after_its_silence(tmp_path, text):
    lock = tmp_path / "lock"
    if text is None:
        a_dead_lock(lock, host="node7")
    else:
        lock.write_text(text)
    who = r"process \d+ on node7" if text is None else "an unknown process"
    words = rf"in use by {who}, which gave a sign of life \d+ s ago; .*delete {lock}"
    with pytest.raises(FolderError, match=words), open_folder(tmp_path, TEXT, stale_after_s=60):
        pass
    os.utime(lock, (time.time() - 100,) * 2)
    with open_folder(tmp_path, TEXT, stale_after_s=60) as folder:
        assert Owner.of(folder.lock) == folder.held.owner


def test_touching_renews_only_ones_own_lock(tmp_path):
    with open_folder(tmp_path, TEXT) as folder:
        os.utime(folder.lock, (1, 1))
        folder.touch_lock()
        assert time.time() - folder.lock.stat().st_mtime < 60
        folder.lock.unlink()
        folder.touch_lock()
        a_dead_lock(folder.lock, host="node7")
        with pytest.raises(FolderError, match=r"taken over by process \d+ on node7"):
            folder.touch_lock()
    assert Owner.of(folder.lock).host == "node7"


def test_the_lock_goes_when_the_run_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), open_folder(tmp_path, TEXT) as folder:
        raise ZeroDivisionError
    assert not folder.lock.exists()


def test_of_many_who_find_a_dead_lock_one_gets_it(tmp_path):
    a_dead_lock(tmp_path / "lock")
    start = time.monotonic() + 0.2

    def try_it():
        lock = Lock(tmp_path / "lock", 60)
        while time.monotonic() < start:
            pass
        try:
            lock.take()
        except FolderError:
            return 3
        time.sleep(0.3)
        return 0

    children = [in_child(try_it) for _ in range(8)]
    assert sorted(exit_code(pid) for pid in children) == [0] + [3] * 7


def test_a_second_attempt_in_the_same_folder_replaces_the_config(tmp_path):
    a_run(tmp_path)
    with open_folder(tmp_path, TEXT.replace("epochs: 20", "epochs: 40")):
        pass
    assert inspect(tmp_path, CONFIG).limits["epochs"] == 40


def test_d23_a_full_disk_is_told_with_path_and_words_and_leaves_no_lock(tmp_path):
    (tmp_path / ".config.yaml.part").symlink_to("/dev/full")  # every write there: ENOSPC
    words = rf"cannot write the run folder {tmp_path}: No space left on device .*runs=FOLDER"
    with pytest.raises(FolderError, match=words), open_folder(tmp_path, TEXT):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ranks"]


def test_a_full_disk_leaves_no_lock_that_names_nobody(tmp_path):
    def meet_the_limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        try:
            with open_folder(tmp_path, TEXT):
                return 1
        except FolderError as error:
            return 0 if "File too large" in str(error) else 2

    assert exit_code(in_child(meet_the_limit)) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told_with_the_systems_words(tmp_path):
    closed = Path("/proc/launch-runs/digits")  # refused for root, too
    with pytest.raises(OSError) as system:  # noqa: PT011 - its words are compared below
        closed.parent.mkdir()
    words = rf"cannot write the run folder {closed}: {system.value.strerror} "
    with pytest.raises(FolderError, match=words), open_folder(closed, TEXT):
        pass
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(FolderError, match="Not a directory"),
        open_folder(tmp_path / "file/x", TEXT),
    ):
        pass


def test_a_lock_knows_the_names_of_a_folder_that_is_nothing_yet(tmp_path):
    folder = RunFolder(tmp_path / "absent")
    assert folder.events() == []
    with pytest.raises(FileNotFoundError):
        Lock(folder.lock, 60).take()
