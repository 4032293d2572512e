import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

from launch.folder import FolderError, RunFolder, open_folder
from launch.folder.lock import Lock, owner_of
from launch.processes import Owner


def in_child(work):
    """Run ``work`` in a process of its own; returns its pid. Its answer is the exit code."""
    pid = os.fork()
    if pid == 0:
        os._exit(work() or 0)
    return pid


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_for(path):
    wait_until(path.exists)


def wait_until(holds):
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def a_dead_lock(path, **other):
    """Write the lock of a process that has ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    owner = {**vars(Owner.here()), "pid": child.pid, **other}
    path.write_text(json.dumps(owner))
    return owner


def test_a_live_runs_folder_is_refused_with_host_and_pid(tmp_path):
    def hold():
        with open_folder(tmp_path) as folder:
            folder.stop.write_text("")
            signal.pause()

    pid = in_child(hold)
    wait_for(tmp_path / "STOP")
    words = rf"in use by process {pid} on {Owner.here().host} since .*name=OTHER"
    with pytest.raises(FolderError, match=words), open_folder(tmp_path):
        pass
    assert owner_of(tmp_path / "lock").pid == pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert owner_of(tmp_path / "lock").is_alive() is False  # nobody has waited for it yet
    assert exit_code(pid) == -signal.SIGKILL
    with open_folder(tmp_path) as folder:
        assert owner_of(folder.lock).pid == os.getpid()


def test_a_dead_runs_lock_is_taken_over_at_once(tmp_path):
    a_dead_lock(tmp_path / "lock")
    with open_folder(tmp_path) as folder:
        assert owner_of(folder.lock).pid == os.getpid()
    assert not folder.lock.exists()


def test_a_lock_of_the_same_job_on_a_lost_host_is_taken_over_at_once(tmp_path):
    a_dead_lock(tmp_path / "lock", host="node7", job="slurm 12")
    with pytest.raises(FolderError, match="sign of life"), open_folder(tmp_path, job="slurm 13"):
        pass
    with open_folder(tmp_path, job="slurm 12") as folder:
        assert owner_of(folder.lock) == folder.held.owner


def test_an_orphans_lock_is_waited_for(tmp_path):
    def hold():
        with open_folder(tmp_path):
            time.sleep(1)

    def leave_it_alone():
        in_child(hold)
        wait_for(tmp_path / "lock")
        return 0

    assert exit_code(in_child(leave_it_alone)) == 0
    first = owner_of(tmp_path / "lock")
    assert first.is_alive()
    with open_folder(tmp_path) as folder:
        assert owner_of(folder.lock) == folder.held.owner
    wait_until(lambda: not first.is_alive())


def test_a_recycled_pid_is_not_mistaken_for_the_dead_run(tmp_path):
    mine = Owner.here()
    (tmp_path / "lock").write_text(json.dumps({**vars(mine), "started": mine.started - 1}))
    with open_folder(tmp_path) as folder:
        assert owner_of(folder.lock) == folder.held.owner


@pytest.mark.parametrize("text", [None, "", "{}", '{"pid": "x"}', '{"host": "h", "pid": -1}'])
def test_a_lock_from_elsewhere_is_dead_only_after_its_silence(tmp_path, text):
    lock = tmp_path / "lock"
    if text is None:
        a_dead_lock(lock, host="node7")
    else:
        lock.write_text(text)
    who = r"process \d+ on node7" if text is None else "an unknown process"
    words = rf"in use by {who}, which gave a sign of life \d+ s ago; .*delete {lock}"
    with pytest.raises(FolderError, match=words), open_folder(tmp_path, stale_after_s=60):
        pass
    os.utime(lock, (time.time() - 100,) * 2)
    with open_folder(tmp_path, stale_after_s=60) as folder:
        assert owner_of(folder.lock) == folder.held.owner


def test_touching_renews_only_ones_own_lock(tmp_path):
    with open_folder(tmp_path) as folder:
        os.utime(folder.lock, (1, 1))
        folder.touch_lock()
        assert time.time() - folder.lock.stat().st_mtime < 60
        folder.lock.unlink()
        folder.touch_lock()
        a_dead_lock(folder.lock, host="node7")
        with pytest.raises(FolderError, match=r"taken over by process \d+ on node7"):
            folder.touch_lock()
    assert owner_of(folder.lock).host == "node7"


def test_the_lock_goes_when_the_run_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), open_folder(tmp_path) as folder:
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


def test_D23_a_full_disk_is_told_with_path_and_words_and_leaves_no_lock(tmp_path):
    (tmp_path / ".config.yaml.part").symlink_to("/dev/full")  # every write there: ENOSPC
    words = rf"cannot write the run folder {tmp_path}: No space left on device .*runs=FOLDER"
    with pytest.raises(FolderError, match=words), open_folder(tmp_path) as folder:
        folder.write_config("seed: 0\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ranks"]


def test_a_full_disk_leaves_no_lock_that_names_nobody(tmp_path):
    def meet_the_limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        try:
            with open_folder(tmp_path):
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
    with pytest.raises(FolderError, match=words), open_folder(closed):
        pass
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(FolderError, match="Not a directory"),
        open_folder(tmp_path / "file/x"),
    ):
        pass


def test_a_lock_knows_the_names_of_a_folder_that_is_nothing_yet(tmp_path):
    folder = RunFolder(tmp_path / "absent")
    assert folder.events() == []
    with pytest.raises(FileNotFoundError):
        Lock(folder.lock, 60).take()
