"""Loader processes end when the process they serve is killed, however they were started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CODE = """
import os, sys, time
import torch
from torch.utils.data import TensorDataset
from launch.data import loader
from launch.data.workers import WorkerSettings
from parallel import Phases, World

if __name__ == "__main__":
    world = World()
    settings = WorkerSettings(workers=2, start_method=sys.argv[1])
    data = TensorDataset(torch.arange(64.0))
    shares = loader(data, world, 4, settings=settings).epoch(0, 0, Phases(world.device))
    next(shares)
    from multiprocessing import active_children
    print(*[child.pid for child in active_children()], flush=True)
    time.sleep(60)
"""


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_A11_workers_end_with_the_process_they_serve(tmp_path, method):
    script = tmp_path / "own_loop.py"
    script.write_text(CODE)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    served = subprocess.Popen(
        [sys.executable, str(script), method], env=environ, stdout=subprocess.PIPE, text=True
    )
    assert served.stdout is not None
    with served:
        workers = [int(word) for word in served.stdout.readline().split()]
        assert len(workers) == 2
        served.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 8
    while any(is_alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in workers if is_alive(pid)] == []
