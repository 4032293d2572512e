"""Whole runs in stages: what rank 0 reports of them is what one process reports."""

from __future__ import annotations

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SLOW = pytest.mark.slow
STAGED = ("strategy.name=pipeline", "strategy.split=[2]", "strategy.microbatches=4")
FLOAT64 = (
    "train.precision=float64",
    "train.global_batch_size=10",
    "log.every_steps=1",
    "checkpoint.every_epochs=null",
)


def lines(folder, kind):
    """Return the run's lines of one kind."""
    text = (folder / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, text) if line["event"] == kind]


@pytest.mark.parametrize("strategy", ["pipeline", pytest.param("model_parallel", marks=SLOW)])
def test_E4_E13_outputs_meet_the_targets_of_their_own_samples_in_every_epoch(
    train, tmp_path, strategy
):
    ended = train(
        "task._target_=tests.staged.Same",
        "optimizer._target_=torch.optim.SGD",
        f"strategy.name={strategy}",
        "train.global_batch_size=7",
        "train.max_steps=18",  # of 4 an epoch
        "log.every_steps=1",
        "name=a",
        processes=2,
    )
    assert ended.codes == [0, 0], ended.output
    assert "completed after 18 steps" in ended.output
    steps = lines(tmp_path / "runs/a", "step")
    assert [line["step"] for line in steps] == list(range(1, 19))
    assert {line["loss"] for line in steps} == {0}
    judged = lines(tmp_path / "runs/a", "evaluation")
    assert len(judged) == 5
    assert {line["metrics"]["loss"] for line in judged} == {0}


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=SLOW)])
def test_E6_E17_rank_0_reports_and_draws_what_one_process_does(train, tmp_path, processes):
    words = ("task._target_=tests.staged.Waves", "train.epochs=3", "train.clip_norm=0.5", *FLOAT64)
    words += ("train.accumulate=2",)
    assert train(*words, "strategy.name=single", "name=one").codes == [0]
    ended = train(*words, *STAGED, "name=many", processes=processes)
    assert ended.codes == [0] * processes, ended.output
    for kind in ("step", "evaluation"):
        mine, alone = (lines(tmp_path / "runs" / name, kind) for name in ("many", "one"))
        assert [line["step"] for line in mine] == [line["step"] for line in alone]
        for line, other in zip(mine, alone, strict=True):
            for name, value in numbers(other).items():
                assert numbers(line)[name] == pytest.approx(value, rel=1e-9), name
    board = EventAccumulator(str(tmp_path / "runs/many"), size_guidance={"scalars": 0}).Reload()
    tags = set(board.Tags()["scalars"])
    assert {"train/loss", "train/accuracy", "train/grad_norm", "valid/loss", "valid/accuracy",
            "time/forward", "time/backward", "time/communication", "time/step"} <= tags  # fmt: skip
    assert len(board.Scalars("train/loss")) == len(lines(tmp_path / "runs/one", "step"))
    assert ended.outputs[1:] == [""] * (processes - 1)


def numbers(line):
    """Return the numbers of a line that do not tell of time or memory."""
    kept = {name: line[name] for name in ("loss", "grad_norm", "lr", "samples") if name in line}
    return {**kept, **line.get("metrics", {})}


@pytest.mark.parametrize("balance", ["time", pytest.param("flops", marks=SLOW)])
def test_layers_are_measured_in_the_precision_that_they_train_in(train, balance):
    ended = train(
        "task._target_=tests.staged.Waves",
        "strategy.name=pipeline",
        f"strategy.balance={balance}",
        "train.precision=bfloat16",
        "train.max_steps=2",
        processes=2,
    )
    assert ended.codes == [0, 0], ended.output
    assert f"of the {'time' if balance == 'time' else 'arithmetic'}" in ended.output


def test_the_steps_after_the_last_report_are_reported_at_the_end(train, tmp_path):
    ended = train("task._target_=tests.staged.Waves", *STAGED, "train.max_steps=3", "name=a",
                  "log.every_steps=2", processes=2)  # fmt: skip
    assert ended.codes == [0, 0], ended.output
    assert [line["step"] for line in lines(tmp_path / "runs/a", "step")] == [2, 3]


def test_E15_a_pipeline_that_is_slower_than_one_device_says_so(train):
    ended = train(
        "task._target_=tests.staged.Waves",
        "strategy.name=pipeline",
        "train.max_steps=1",
        processes=2,
    )
    assert "no faster than one device: strategy.name=single, if the model fits it" in ended.output
    assert "expected speed-up 0." in ended.output
    assert "no cut can pass" in ended.output


@pytest.mark.parametrize("samples", [41, pytest.param(45, marks=SLOW)])
def test_replicas_that_share_a_stream_unevenly_stop_together(train, tmp_path, samples):
    words = ("task._target_=tests.staged.Waves", "task.stream=true", f"task.samples={samples}")
    words += ("train.epochs=2", *FLOAT64, "optimizer.lr=1e-4")
    assert train(*words, "strategy.name=single", "name=one").codes == [0]
    ended = train(*words, *STAGED, "name=many", processes=4)
    assert ended.codes == [0] * 4, ended.output
    mine, alone = (lines(tmp_path / "runs" / name, "step") for name in ("many", "one"))
    assert [line["step"] for line in mine] == [line["step"] for line in alone]
    assert [line["loss"] for line in mine] == pytest.approx([line["loss"] for line in alone])
    assert len(mine) == 10
