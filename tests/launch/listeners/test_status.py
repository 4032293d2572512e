import json
import os

import pytest

from launch.listeners import Status


def read(facts):
    return json.loads((facts.folder / "status.json").read_text())


def test_it_runs_until_it_ends(facts, clock):
    status = Status(facts.folder, clock)
    status(facts.started(start_step=7))
    assert read(facts) == {
        "state": "running", "step": 7, "epoch": 0, "reason": None, "rank": None, "metrics": {},
        "world_size": 2, "strategy": "ddp",
    }  # fmt: skip
    status(facts.ended(460))
    status.close()
    assert read(facts) == {
        "state": "completed", "step": 460, "epoch": 20, "reason": "20 epochs", "rank": None,
        "metrics": {"valid/accuracy": 0.9722}, "world_size": 2, "strategy": "ddp",
    }  # fmt: skip
    assert [p.name for p in facts.folder.iterdir()] == ["status.json"]


def test_it_is_refreshed_at_most_every_five_seconds(facts, clock):
    status = Status(facts.folder, clock)
    status(facts.started())
    clock.now += 4.9
    status(facts.progress(30))
    assert read(facts)["step"] == 0
    clock.now += 0.2
    status(facts.evaluated(46, loss=0.25))
    assert (read(facts)["step"], read(facts)["epoch"]) == (46, 2)
    assert read(facts)["metrics"] == {"valid/loss": 0.25}


@pytest.mark.parametrize(("state", "rank"), [("stopped", None), ("failed", 1)])
def test_how_it_ended_is_told(facts, state, rank):
    status = Status(facts.folder)
    status(facts.started())
    status(facts.ended(17, state=state, reason="ValueError: x", rank=rank))
    found = read(facts)
    assert (found["state"], found["reason"], found["rank"]) == (state, "ValueError: x", rank)


def test_a_failure_before_the_start_replaces_the_earlier_runs_state(facts):
    status = Status(facts.folder)
    status(facts.ended(0, state="failed", reason="no data", metrics={}))
    assert read(facts)["state"] == "failed"


def test_what_is_not_finite_is_null(facts):
    status = Status(facts.folder)
    status(facts.ended(1, metrics={"valid/loss": float("nan")}))
    assert read(facts)["metrics"] == {"valid/loss": None}


def test_D23_a_full_disk_leaves_the_earlier_state_and_is_told_with_the_path(facts):
    status = Status(facts.folder)
    status(facts.started())
    os.symlink("/dev/full", facts.folder / ".status.json.part")
    with pytest.raises(OSError, match=r"No space left on device: .*status\.json"):
        status(facts.ended(1))
    assert read(facts)["state"] == "running"
