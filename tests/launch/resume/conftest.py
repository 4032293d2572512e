"""What the tests of resuming look at: a run's last checkpoint, its lines, its batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOISY = (
    "task._target_=tests.tasks.Noisy",
    "train.global_batch_size=8",  # 6 steps an epoch of 45 samples
    "optimizer.lr=0.01",
    "scheduler._target_=torch.optim.lr_scheduler.CosineAnnealingLR",
    "scheduler.T_max=40",
    "log.every_steps=1",
    "log.progress=none",
)


@pytest.fixture
def noisy():
    """Words for a run in which everything random and everything stateful takes part."""
    return NOISY


class Left:
    """What a run left in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def status(self) -> dict:
        return json.loads((self.folder / "status.json").read_text())

    @property
    def state(self) -> dict:
        return json.loads((self.folder / "checkpoints/last/state.json").read_text())

    def lines(self, event: str) -> list[dict]:
        rows = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, rows) if row["event"] == event]

    def steps(self) -> list[int]:
        return sorted(int(p.name[5:]) for p in self.folder.glob("checkpoints/step-*"))

    def bytes(self) -> dict[str, bytes]:
        last = self.folder / "checkpoints/last"
        return {p.name: p.read_bytes() for p in sorted(last.iterdir())}


@pytest.fixture
def left(tmp_path):
    return lambda name: Left(tmp_path / "runs" / name)
