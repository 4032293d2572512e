"""Told to stop, all ranks save at one step and leave; the same command then goes on."""

from __future__ import annotations

import signal

import pytest

STOPS = ("task.told_at=4", "train.max_steps=9", "name=again")


@pytest.mark.parametrize(
    ("number", "processes", "told"),
    [
        (signal.SIGTERM, 1, 0),
        (signal.SIGHUP, 1, 0),
        (signal.SIGUSR1, 2, 0),
        (signal.SIGTERM, 2, 1),
        (signal.SIGINT, 2, 1),
    ],
)
def test_a_signal_to_one_rank_stops_all_at_one_step(train, left, noisy, number, processes, told):
    words = (*noisy, *STOPS, f"task.told={told}", f"task.signal={int(number)}")
    ended = train(*words, processes=processes, timeout_s=30)
    assert ended.codes == [75] * processes, ended.output
    found = left("again").status
    where = f" on rank {told}" if processes > 1 else ""
    assert (found["state"], found["reason"]) == ("stopped", signal.Signals(number).name + where)
    assert found["step"] in (4, 5, 6)
    assert left("again").state["step"] == found["step"]
    assert "the same command goes on from here" in ended.outputs[0]
    assert not (left("again").folder / "lock").exists()
    assert train(*words, processes=processes).codes == [0] * processes
    assert train(*noisy, "train.max_steps=9", "name=straight", processes=processes)
    assert (
        left("again").bytes()["model.safetensors"]
        == (left("straight").bytes()["model.safetensors"])
    )


def test_a_file_STOP_stops_the_run_once(train, left, noisy, tmp_path):
    words = (*noisy, "train.max_steps=3", "name=again")
    (tmp_path / "runs/again").mkdir(parents=True)
    stop = tmp_path / "runs/again/STOP"
    stop.touch()
    assert train(*words, processes=2).codes == [75, 75]
    assert left("again").status["reason"] == "the file STOP"
    assert not stop.exists()
    assert train(*words, processes=2).codes == [0, 0]


def test_max_minutes_stops_this_process_and_not_the_run(train, left, noisy):
    words = (*noisy, "train.epochs=2", "task.slow_s=0.05", "name=again")
    ended = train(*words, "--max-minutes=0.005", processes=2, timeout_s=30)
    assert ended.codes == [75, 75]
    assert left("again").status["reason"] == "--max-minutes"
    assert left("again").status["step"] < 12
    assert train(*words, "--max-minutes", "5", processes=2).codes == [0, 0]


def test_max_minutes_of_training_completes_the_run_over_all_attempts(train, left, noisy):
    words = (*noisy, "train.epochs=null", "train.max_minutes=0.05", "task.slow_s=0.05")
    words = (*words, "name=again", "task.told_at=9")
    assert train(*words).codes == [75]
    first = left("again").status["step"]
    assert train(*words).codes == [0]
    assert left("again").status["reason"] == "train.max_minutes"
    assert first < left("again").status["step"] <= 60  # 3 s in all, 0.05 s a step
    assert "already complete" in train(*words).output


def test_told_while_it_evaluates_it_leaves_the_evaluation_and_makes_up_for_it(train, left, noisy):
    words = (*noisy, "train.epochs=2", "task.valid=40", "evaluate.batch_size=1", "name=again")
    told = (*words, "task.judged_s=0.1", "task.told_judging=5")
    ended = train(*told, processes=2, timeout_s=30)
    assert ended.codes == [75, 75], ended.output
    assert left("again").status["step"] == 6
    assert left("again").lines("evaluation") == []
    assert train(*words, "task.judged_s=0.1", "task.told_judging=5", processes=2).codes == [0, 0]
    assert [row["step"] for row in left("again").lines("evaluation")] == [6, 12]


def test_a_second_SIGINT_leaves_at_once(train, left, noisy):
    words = (*noisy, "train.max_steps=9", "name=again", "task.told_at=4", "task.signal=2")
    ended = train(*words, "task.twice=true", "task.slow_s=1", timeout_s=30)
    assert ended.codes == [130]
    assert "interrupted twice" in ended.output


def test_told_before_the_first_step_it_stops_there(train, left, noisy):
    words = (*noisy, "train.max_steps=3", "name=again", "task.told_building=true")
    ended = train(*words, processes=2, timeout_s=30)
    assert ended.codes == [75, 75], ended.output
    assert left("again").status["step"] == 0
    assert train(*words, processes=2).codes == [0, 0]


def test_told_while_it_saves_the_checkpoint_is_whole_and_the_next_one_the_last(train, left, noisy):
    words = (*noisy, "train.max_steps=9", "checkpoint.every_steps=1", "name=again")
    ended = train(*words, "task.told_saving=3", processes=2, timeout_s=30)
    assert ended.codes == [75, 75], ended.output
    assert left("again").status["step"] in (3, 4, 5)
    assert left("again").state["step"] == left("again").status["step"]


@pytest.mark.parametrize("persistent", ["true", "false"])
def test_loader_processes_outlive_the_groups_signal(train, left, noisy, persistent):
    words = (*noisy, "train.max_steps=9", "data.workers=2", f"data.persistent={persistent}")
    words = (*words, "name=again", "task.told_at=4", "task.group=true")
    ended = train(*words, processes=2, timeout_s=30)
    assert ended.codes == [75, 75], ended.output
    assert left("again").state["step"] == left("again").status["step"]
