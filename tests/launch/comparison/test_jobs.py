"""Real jobs: torchrun, gloo, and what goes wrong in them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TASK = """
import os, signal, time
from dataclasses import dataclass
from launch.config import key
from launch.tasks.net import Net


@dataclass
class Faulty(Net):
    fault: str = key("none", "what goes wrong under ddp")

    def loss(self, model, batch):
        if os.environ.get("WORLD_SIZE") == "2" and os.environ.get("RANK") == "1":
            self.met = getattr(self, "met", 0) + 1
            if self.met > 10 and self.fault == "raises":
                raise ValueError("boom")
            if self.met > 10 and self.fault == "hangs":
                time.sleep(1000)
            if self.met > 10 and self.fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)
"""


def command(*words):
    return [sys.executable, "-m", "launch.compare", *words]


def compare(folder, *words, timeout_s=200):
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environment["PYTHONPATH"] = str(ROOT)
    ended = subprocess.run(
        command("faulty.yaml", "--devices=2", *words),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    kept = json.loads((folder / "runs/compare-faulty/compare.json").read_text())
    return ended, {each["row"]["name"]: each for each in kept["rows"]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "faulty.py").write_text(TASK)
    (tmp_path / "faulty.yaml").write_text(
        "task: {_target_: faulty.Faulty}\n"
        "optimizer: {_target_: torch.optim.SGD, lr: 0.01}\n"
        "train: {epochs: 1, global_batch_size: 100}\n"
    )
    return tmp_path


def test_rows_take_the_same_steps_and_find_the_same_losses(folder):
    ended, rows = compare(folder, "--rows=single,ddp", "--minutes=0.7")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    turns = {name: row["turns"] for name, row in rows.items()}
    assert list(turns) == ["single", "single, all cores", "ddp"]
    for one, other in zip(turns["single"], turns["ddp"], strict=True):
        assert (one["first"], one["last"], one["round"]) == (
            other["first"],
            other["last"],
            other["round"],
        )
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert len(turns["ddp"]) >= 3
    assert all(0 < row["peak_bytes"][0] < 1e9 for row in rows.values())
    assert len(rows["ddp"]["peak_bytes"]) == 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises", "rank 1 of 2 failed after step 0: ValueError: boom"),
        ("hangs", "ended by its time limit"),
        ("dies", "killed by SIGKILL"),
    ],
)
def test_a_row_that_fails_becomes_its_reason_and_the_others_go_on(folder, fault, said):
    words = ("--rows=ddp", f"task.fault={fault}", "--minutes=0.6", "--limit-s=12", "--steps=50")
    ended, rows = compare(folder, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert said in rows["ddp"]["problem"]
    assert rows["single"]["problem"] == ""
    assert rows["single"]["turns"]
    assert "Traceback" not in ended.stdout + ended.stderr


def test_interrupted_it_shows_what_there_is_and_the_same_command_goes_on(folder):
    words = ("faulty.yaml", "--devices=2", "--rows=ddp", "--minutes=1", "--steps=20")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = command(*words)
    with subprocess.Popen(
        started, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        said = ""
        while "round " not in said:
            said += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said += process.stdout.read()
    assert process.returncode == 130
    assert "ddp" in said.partition("round ")[2]
    assert "the same command goes on" in said
    time.sleep(1)
    left = subprocess.run(["pgrep", "-f", "comparison.worker"], capture_output=True, text=True)
    assert str(folder) not in left.stdout
    kept = json.loads((folder / "runs/compare-faulty/compare.json").read_text())
    before = {each["row"]["name"]: len(each["turns"]) for each in kept["rows"]}
    ended, rows = compare(folder, *words[2:])
    assert ended.returncode == 0
    assert all(len(rows[name]["turns"]) > count for name, count in before.items())
    assert max(turn["round"] for turn in rows["ddp"]["turns"]) > 3
