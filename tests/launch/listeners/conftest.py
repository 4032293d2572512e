from pathlib import Path

import pytest

from launch.events import EvaluationDone, Progress, RunEnded, RunStarted

CONFIG = {
    "name": "digits",
    "seed": 0,
    "task": {"_target_": "launch.tasks.digits.Digits", "width": 32, "sizes": [1, 2]},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 2e-3},
    "scheduler": None,
    "train": {"epochs": 20, "max_minutes": None, "compile": False},
}


class Facts:
    """Makes the events of a run, each with only what a test cares for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def started(self, **changes):
        facts = {
            "folder": self.folder,
            "config": CONFIG,
            "config_text": "seed: 0\n",
            "strategy": "ddp",
            "world_size": 2,
            "device": "cpu",
            "backend": "gloo",
            "parameters": 12345,
            "global_batch_size": 64,
            "batch_sizes": (32, 32),
            "accumulate": 1,
            "precision": "float32",
            "steps": 460,
            "epochs": 20,
            "start_step": 0,
            "versions": {"torch": "2.13.0"},
        }
        return RunStarted(**{**facts, **changes})

    def progress(self, step, **changes):
        facts = {
            "epoch": step // 23,
            "loss": 1 / step,
            "metrics": {},
            "lr": 0.002,
            "grad_norm": 0.5,
            "samples_per_s": 1234.0,
            "time_s": {"data": 0.001, "forward": 0.004, "backward": 0.005, "step": 0.01},
            "peak_gib": 0.25,
            "slowest_rank": 1,
            "skipped": 0,
        }
        return Progress(step, **{**facts, **changes})

    def evaluated(self, step, **metrics):
        return EvaluationDone(step, step // 23, "valid", 360, metrics or {"loss": 0.5}, 0.1)

    def ended(self, step, state="completed", reason="20 epochs", **changes):
        facts = {"rank": None, "metrics": {"valid/accuracy": 0.9722}, "seconds": 35.2}
        return RunEnded(state, step, step // 23, reason, **{**facts, **changes})


class Clock:
    """Time that a test lets pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def facts(tmp_path):
    folder = tmp_path / "runs" / "digits"
    folder.mkdir(parents=True)
    return Facts(folder)


@pytest.fixture
def clock():
    return Clock()
