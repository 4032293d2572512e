"""The optimizer of a configuration, as a run makes it."""

from __future__ import annotations

import json

import pytest

ASGD = ("optimizer._target_=torch.optim.ASGD", "optimizer.lr=0.01", "optimizer.t0=${run:steps}")
PROBE = ("task._target_=tests.tasks.Probe", "train.global_batch_size=8")  # 2 steps an epoch


@pytest.mark.parametrize("processes", [1, 2])
def test_the_length_of_the_run_is_known_to_the_optimizer(train, tmp_path, processes):
    words = (*PROBE, *ASGD, "optimizer.lambd=${run:steps_per_epoch}", "train.epochs=3", "name=a")
    ended = train(*words, processes=processes)
    assert ended.codes == [0] * processes, ended.output
    state = json.loads((tmp_path / "runs/a/checkpoints/last/state.json").read_text())
    [group] = state["optimizers"][0]["groups"]
    assert (group["t0"], group["lambd"]) == (6, 2)


def test_a_length_that_is_not_known_is_refused_at_once(train, tmp_path):
    ended = train(*ASGD, "train.epochs=null", "train.max_minutes=1")
    assert ended.codes == [2]
    assert "optimizer.t0=${run:steps}: how many steps this run takes is not known" in ended.output
    assert not (tmp_path / "runs").exists()
