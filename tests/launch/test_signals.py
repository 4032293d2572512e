"""Signals are heard at once, and mean afterwards what they meant before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from launch.control import BUDGET, Control, Ending
from launch.signals import STOPPING, Signals

ROOT = Path(__file__).parents[2]


def test_a_signal_is_heard_while_the_main_thread_waits_in_cpp(tmp_path):
    signals, heard = Signals(), []
    signals.every_second(lambda: signals.last and heard.append(time.monotonic()))
    store = dist.FileStore(str(tmp_path / "store"), 1)
    start = time.monotonic()
    killer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    with signals.heard():
        killer.start()
        with pytest.raises(RuntimeError, match="timeout"):
            store.wait(["never"], timedelta(seconds=2.5))
    assert signals.last == signal.SIGUSR1
    assert heard[0] - start < 1.5


def test_afterwards_handlers_and_threads_are_as_before():
    before = [signal.getsignal(number) for number in STOPPING], threading.active_count()
    with Signals().heard():
        assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)
    assert ([signal.getsignal(number) for number in STOPPING], threading.active_count()) == before
    assert signal.set_wakeup_fd(-1) == -1


def rows(*codes):
    return [{"stop": float(code), "save": 0.0} for code in codes]


@pytest.mark.parametrize(
    ("codes", "ending"),
    [
        ((0, 0), None),
        ((0, 15), Ending("stopped", "SIGTERM on rank 1")),
        ((10,), Ending("stopped", "SIGUSR1")),
        ((BUDGET, BUDGET), Ending("stopped", "--max-minutes")),
        ((1000, 1000), Ending("completed", "train.max_minutes")),
        ((1000, 15), Ending("stopped", "SIGTERM on rank 1")),
        ((1003, 0), Ending("stopped", "the launcher is gone on rank 0")),
    ],
)
def test_one_rank_that_was_told_stops_all(codes, ending):
    control = Control(Signals())
    control.agree(rows(*codes))
    assert control.ending == ending


def test_a_stop_comes_before_a_limit_and_is_not_taken_back():
    control = Control(Signals())
    for code in (1000, 15, 1000, 0):
        control.agree(rows(code))
    assert control.ending == Ending("stopped", "SIGTERM")


@pytest.mark.slow
def test_told_while_it_waits_for_others_to_start_it_leaves_within_seconds(tmp_path):
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    environ = {**os.environ, **variables, "MASTER_PORT": "23456", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "launch.train"]
    with (tmp_path / "out").open("w") as out:
        rank = subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=out, stdout=out)
    deadline = time.monotonic() + 60
    while not (tmp_path / "runs/digits/ranks").is_dir() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    rank.terminate()
    assert rank.wait(20) == 75
    assert "SIGTERM while waiting for the other ranks" in (tmp_path / "out").read_text()
