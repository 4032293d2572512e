"""Replicas that come apart in a run: it ends, unless it was told not to compare them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

APART = (
    "task._target_=tests.tasks.Apart",
    "task.batch_norm=true",
    "train.global_batch_size=8",  # 2 steps an epoch
    "train.epochs=2",
    "name=a",
)
COMPARED_AT = pytest.mark.parametrize("step", [1, 2, 4], ids=["first", "second", "checkpoint"])


def step_of(folder: Path) -> int:
    return json.loads((folder / "status.json").read_text())["step"]


@COMPARED_AT
def test_replicas_that_differ_end_the_run(train, tmp_path, step):
    ended = train(*APART, f"task.apart_at={step}", "checkpoint.every_epochs=null", processes=2)
    assert ended.codes == [1, 1]
    assert "the replicas are no longer the same: 0.weight on rank 1" in ended.output
    assert ended.output.count("train.compare_replicas=false") == 1
    assert step_of(tmp_path / "runs/a") == step
    assert not list((tmp_path / "runs/a").glob("checkpoints/*"))


@COMPARED_AT
def test_replicas_that_differ_go_on_where_they_are_not_compared(train, tmp_path, step):
    words = (*APART, f"task.apart_at={step}", "train.compare_replicas=false")
    ended = train(*words, processes=2)
    assert ended.codes == [0, 0], ended.output
    assert step_of(tmp_path / "runs/a") == 4
    assert (tmp_path / "runs/a/checkpoints/last").readlink() == Path("step-00000004")
