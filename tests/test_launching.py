"""Under the real torchrun: how runs start, fail and end there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

QUICK = (
    "task._target_=tests.tasks.Probe",
    "train.global_batch_size=8",
    "train.epochs=2",
    "name=a",
)


def status(tmp_path: Path, name: str = "a") -> dict:
    return json.loads((tmp_path / "runs" / name / "status.json").read_text())


@pytest.mark.slow
def test_A6_the_launchers_summary_names_the_first_failure(run_module):
    started = monotonic()
    ended = run_module("launch.train", *QUICK, "task.fault=raise", processes=2)
    assert ended.returncode == 1
    assert monotonic() - started < 60
    ours = r"rank 1 of 2 failed after step \d: ValueError: boom\n  at .*tasks\.py:\d+, in fail\n"
    assert re.search(ours, ended.stdout)
    last = "\n".join(ended.stdout.splitlines()[-40:])
    assert "tasks.py" in last
    assert "ValueError: boom" in last
    root = ended.stdout.partition("Root Cause")[2]
    assert "rank      : 1" in root
    assert "error_file: <N/A>" not in root


@pytest.mark.slow
def test_A1_two_runs_at_once_do_not_meet(tmp_path):
    root = str(Path(__file__).parents[1])
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    runs = [
        subprocess.Popen(
            [*command, "-m", "launch.train", *QUICK[:-1], f"name={name}"],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in "ab"
    ]
    assert [run.wait(90) for run in runs] == [0, 0]
    assert status(tmp_path, "a")["world_size"] == status(tmp_path, "b")["world_size"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("stray", ["--local_rank 0", "--local-rank=0"])
def test_A2_a_stray_local_rank_is_ignored_and_said(run_module, tmp_path, stray):
    ended = run_module("launch.train", *QUICK, *stray.split(), processes=2)
    assert ended.returncode == 0
    assert f"note: {stray} is ignored" in ended.stdout
    assert status(tmp_path)["world_size"] == 2


@pytest.mark.slow
def test_A5_the_old_launcher_works(run_module, tmp_path):
    words = ("--nproc_per_node=2", "-m", "launch.train", *QUICK)
    ended = run_module("torch.distributed.launch", *words)
    assert ended.returncode == 0, ended.stdout
    assert status(tmp_path)["world_size"] == 2


@pytest.mark.slow
def test_A12_a_mistake_in_the_configuration_is_printed_once_an_attempt(run_module, tmp_path):
    ended = run_module("launch.train", *QUICK, "train.epoch=1", processes=2)
    assert ended.returncode == 1
    assert ended.stdout.count("there is no key train.epoch") == 1
    assert "launch/train.py" not in ended.stdout  # no traceback of ours
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "exit"])
def test_A10_a_rank_that_leaves_early_fails_the_job(run_module, fault):
    started = monotonic()
    ended = run_module("launch.train", *QUICK, f"task.fault={fault}", processes=2)
    assert ended.returncode == 1
    assert monotonic() - started < 60


@pytest.mark.slow
def test_A20_nccl_without_a_gpu_is_one_line(run_module):
    ended = run_module("launch.train", *QUICK, "launch.backend=nccl", processes=2)
    assert ended.returncode == 1
    assert ended.stdout.count("launch.backend=nccl needs a GPU") == 1


@pytest.mark.slow
def test_A21_the_chosen_interface_reaches_the_workers(run_module):
    good = run_module("launch.train", *QUICK, processes=2, GLOO_SOCKET_IFNAME="lo")
    assert good.returncode == 0
    bad = run_module("launch.train", *QUICK, "name=b", processes=2, GLOO_SOCKET_IFNAME="ib77")
    assert bad.returncode == 1
    assert "GLOO_SOCKET_IFNAME=ib77" in bad.stdout


@pytest.mark.slow
def test_A8_nobody_waits_for_a_rank_that_failed_while_the_others_are_in_a_barrier(run_module):
    started = monotonic()
    ended = run_module("launch.train", *QUICK, "task.fault=prepare", processes=2)
    assert ended.returncode == 1
    assert "no such mirror" in ended.stdout
    assert monotonic() - started < 40


@pytest.mark.slow
def test_the_digits_end_well_many_times_in_a_row(run_module, tmp_path):
    for number in range(10):
        words = ("train.epochs=3", f"name=d{number}", "log.progress=none")
        ended = run_module("launch.train", *words, processes=2)
        assert ended.returncode == 0, ended.stdout
        assert status(tmp_path, f"d{number}")["state"] == "completed"
