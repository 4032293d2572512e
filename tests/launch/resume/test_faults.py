"""Faults on purpose: how each ends, what is said of it, and that the same command recovers."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest

RUN = ("train.max_steps=9", "checkpoint.every_steps=2", "name=again")


def recovered(train, left, words):
    """Whether the same command now ends with the weights of a run without a fault."""
    assert train(*words, processes=2).codes == [0, 0]
    plain = [word for word in words if not word.startswith(("fault", "name"))]
    assert train(*plain, "name=straight", processes=2).codes == [0, 0]
    ours, theirs = left("again").bytes(), left("straight").bytes()
    return all(
        ours[f"{k}.safetensors"] == theirs[f"{k}.safetensors"] for k in ("model", "optimizer")
    )


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_rank_is_named_and_the_run_goes_on_from_its_checkpoint(train, left, noisy, rank):
    words = (*noisy, *RUN, "fault.kind=kill", "fault.step=6", f"fault.rank={rank}")
    ended = train(*words, processes=2, timeout_s=30)
    assert ended.codes[rank] == -9
    assert ended.codes[1 - rank] == 1
    said = f"rank {rank} of 2 failed after step 5: rank {rank} left without a word"
    assert said in ended.outputs[1 - rank]
    last = ended.outputs[1 - rank].rpartition(said)[2].splitlines()
    assert len(last) == 2  # no place: the survivor's says nothing of the one that is gone
    assert "launch/" not in last[0]
    assert last[1].startswith("  the launcher's table")
    assert recovered(train, left, words)
    assert left("again").lines("start")[-1]["step"] == 4


@pytest.mark.slow  # test_A6_A18 does most of it
def test_a_rank_that_raises_has_the_last_word_and_the_run_goes_on(train, left, noisy):
    words = (*noisy, *RUN, "fault.kind=raise", "fault.step=6", "fault.rank=1")
    ended = train(*words, processes=2, timeout_s=30)
    assert ended.codes == [1, 1]
    assert "rank 1 of 2 failed after step 5: InjectedError: fault.kind=raise" in ended.outputs[1]
    assert recovered(train, left, words)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_hangs_is_named_with_its_place_and_all_stacks_are_kept(
    train, left, noisy, rank
):
    words = (*noisy, *RUN, "fault.kind=hang", "fault.step=4", f"fault.rank={rank}")
    ended = train(*words, "launch.timeout_s=4", processes=2, timeout_s=30)
    assert ended.codes == [1, 1], ended.output
    last = ended.outputs[rank].splitlines()[-3:]
    assert last[0].startswith(f"rank {rank} of 2 failed after step 3: Hang: no progress for")
    assert "launch/fault.py" in last[1]
    assert "launch.timeout_s" in last[2]
    assert "Traceback" not in ended.output
    for each in (0, 1):
        log = (left("again").folder / f"ranks/rank-{each}.log").read_text()
        assert "no progress for" in log
        assert "most recent call first" in log
    assert "in _strike" in (left("again").folder / f"ranks/rank-{rank}.log").read_text()
    found = left("again").status
    assert (found["state"], found["rank"]) == ("failed", rank)
    assert recovered(train, left, words)


def test_gradients_that_are_not_finite_on_one_rank_skip_one_step(train, left, noisy):
    words = (*noisy, *RUN, "fault.kind=nan", "fault.step=3", "fault.rank=1")
    assert train(*words, processes=2).codes == [0, 0]
    assert [row["skipped"] for row in left("again").lines("step")] == [0, 0, *[1] * 7]


def test_a_truncated_checkpoint_is_skipped_and_that_is_said(train, left, noisy):
    words = (*noisy, *RUN, "fault.kind=truncate", "fault.step=7")
    assert train(*words, processes=2, timeout_s=30).codes[0] == -9
    ended = train(*words, processes=2)
    assert ended.codes == [0, 0]
    assert "step-00000006: model.safetensors has 100 bytes, the manifest says" in ended.output
    assert left("again").lines("start")[-1]["step"] == 4
    assert recovered(train, left, words)


@pytest.mark.slow
def test_a_slow_rank_changes_nothing_but_the_time(train, left, noisy):
    words = (*noisy, *RUN, "fault.kind=slow", "fault.step=3", "fault.rank=1")
    assert train(*words, processes=2, timeout_s=60).codes == [0, 0]
    assert recovered(train, left, words)


def test_a_fault_for_a_rank_that_is_not_there_is_refused(train, noisy):
    ended = train(*noisy, *RUN, "fault.kind=kill", "fault.rank=2", processes=2)
    assert ended.codes == [2, 2]
    assert "fault.rank=2, but there are 2 processes" in ended.output


def test_a_fault_of_an_unknown_kind_is_refused_with_the_kinds(train, noisy):
    ended = train(*noisy, *RUN, "fault.kind=fire")
    assert ended.codes == [2]
    assert "kill, raise, hang" in ended.output


def test_A13_who_takes_too_long_to_save_is_named(train, left, noisy):
    words = (*noisy, *RUN, "task.saving_s=9", "launch.timeout_s=3")
    ended = train(*words, processes=2, timeout_s=30)
    assert ended.codes == [1, 1]
    assert "rank 0 of 2 failed after step 2: Hang: no progress" in ended.outputs[0]
    assert "rank 0 writes the checkpoint" in ended.outputs[0]
    assert "raise launch.timeout_s" in ended.outputs[0]


@pytest.fixture
def let_go_on(tmp_path):
    """Continue the process that the task stopped, once a survivor has said its last."""

    def watch():
        deadline = time.monotonic() + 80
        while time.monotonic() < deadline:
            said = "".join(p.read_text() for p in tmp_path.glob("terminal-*.txt"))
            if "failed after step" in said or "failed on rank" in said:
                time.sleep(2)
                break
            time.sleep(0.1)
        for file in tmp_path.glob("frozen.txt"):
            os.kill(int(file.read_text()), signal.SIGCONT)

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_a_signal_holds_is_named_with_the_way_to_free_it(
    train, left, noisy, tmp_path, let_go_on, rank
):
    words = (*noisy, *RUN, "task._target_=tests.tasks.Frozen", f"task.frozen={rank}")
    ended = train(*words, "launch.timeout_s=8", processes=2, timeout_s=100)
    assert ended.codes == [1, 1], ended.output
    pid = (tmp_path / "frozen.txt").read_text()
    last = ended.outputs[1 - rank].splitlines()[-2:]
    assert last == [
        f"rank {rank} of 2 failed after step 2: Stopped: process {pid} on {socket.gethostname()} "
        "is held by a signal (SIGSTOP, Ctrl-Z); the others waited 8 s for it",
        f"  let it end by `kill -CONT {pid}`, and give the same command again",
    ]
    assert "gloo" not in ended.output.replace("cpu, gloo", "")
    log = (left("again").folder / f"ranks/rank-{1 - rank}.log").read_text()
    assert "Timed out waiting" in log
    if rank:
        found = left("again").status
        assert (found["state"], found["rank"]) == ("failed", rank)
        assert "is held by a signal" in found["reason"]
