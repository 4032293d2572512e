"""Whole runs, in real processes: what they leave, what they say, how they end."""

from __future__ import annotations

import json
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from launch.attached import listen
from launch.config import load
from launch.events import RunEnded
from launch.failures import TrainingError
from launch.folder import OpenFolder
from launch.folder.lock import Lock

PROBE = ("task._target_=tests.tasks.Probe", "train.global_batch_size=8", "optimizer.lr=0.01")
QUICK = (*PROBE, "train.epochs=2", "log.every_steps=1", "name=a")


def lines(folder: Path, event: str) -> list[dict]:
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, rows) if row["event"] == event]


def status(folder: Path) -> dict:
    return json.loads((folder / "status.json").read_text())


def curves(folder: Path) -> EventAccumulator:
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    return read.Reload()


def test_a_run_leaves_the_folder_that_is_promised(train, tmp_path):
    assert train(*QUICK, processes=2).codes == [0, 0]
    folder = tmp_path / "runs/a"
    names = {p.name for p in folder.iterdir() if not p.name.startswith("events")}
    assert names == {"config.yaml", "metrics.jsonl", "status.json", "checkpoints", "ranks"}
    assert {p.name for p in (folder / "ranks").iterdir()} == {"rank-0.log", "rank-1.log"}
    last = folder / "checkpoints/last"
    assert last.readlink() == Path("step-00000004")
    names = {"model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"}
    assert {p.name for p in last.iterdir()} == names
    assert set(load_file(last / "model.safetensors")) == {
        "0.weight", "0.bias", "1.weight", "1.bias",
    }  # fmt: skip
    assert status(folder)["state"] == "completed"
    assert (status(folder)["world_size"], status(folder)["strategy"]) == (2, "ddp")


def test_H3_one_events_file_with_every_tag_and_the_last_step(train, tmp_path):
    train(*QUICK, processes=2)
    folder = tmp_path / "runs/a"
    assert len(list(folder.glob("events*"))) == 1
    tags = curves(folder).Tags()["scalars"]
    assert set(tags) >= {
        "train/loss", "train/lr", "train/grad_norm", "train/target", "valid/loss", "probe/step",
        "throughput/samples_per_s", "time/step", "time/data", "time/communication",
        "memory/peak_gib", "rank/slowest",
    }  # fmt: skip
    assert [e.step for e in curves(folder).Scalars("train/loss")] == [1, 2, 3, 4]
    assert curves(folder).Scalars("valid/loss")[-1].step == 4
    assert [
        p for p in folder.iterdir() if p.is_dir() and p.name not in ("ranks", "checkpoints")
    ] == []


def test_H4_C24_four_ranks_make_the_folders_at_once(train, tmp_path):
    assert train(*QUICK, processes=4).codes == [0] * 4
    assert len(list((tmp_path / "runs/a/ranks").iterdir())) == 4


def test_H8_the_loss_is_the_mean_over_ranks(train, tmp_path):
    words = ("task._target_=tests.tasks.Ranks", *QUICK[1:], "task.valid=0")
    assert train(*words, processes=2).codes == [0, 0]
    assert [row["loss"] for row in lines(tmp_path / "runs/a", "step")] == [2.0] * 4


def test_the_same_command_again_says_already_complete(train, tmp_path):
    train(*QUICK)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*")}
    again = train(*QUICK, processes=2)
    assert again.codes == [0, 0]
    assert "already complete" in again.outputs[0]
    assert again.outputs[1] == ""
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*")} == before


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("seed=1", "seed: 0 there, 1 here"),
        ("task.samples=17", "task.samples: 16 there, 17 here"),
        ("train.global_batch_size=4", "train.global_batch_size: 8 there, 4 here"),
    ],
)
def test_H11_another_experiment_in_the_same_folder_is_refused(train, tmp_path, word, said):
    train(*QUICK)
    before = (tmp_path / "runs/a/metrics.jsonl").read_bytes()
    refused = train(*QUICK, word)
    assert refused.codes == [2]
    assert said in refused.output
    assert "name=a-2" in refused.output
    assert (tmp_path / "runs/a/metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("word", ["task.samples=16", "task.sleep_s=0", "task.fault=''"])
def test_a_key_that_is_written_at_its_default_is_no_other_experiment(train, word):
    assert train(*QUICK).codes == [0]
    assert "already complete" in train(*QUICK, word).output
    longer = train(*QUICK, word, "train.epochs=3")
    assert longer.codes == [0], longer.output
    assert "(was absent)" not in longer.output
    assert "already complete" in train(*QUICK, "train.epochs=3").output
    other = train(*QUICK, word, "name=b", "train.epochs=3", "checkpoint.resume=runs/a")
    assert other.codes == [0], other.output


def test_B1_each_epoch_has_its_own_order_and_both_ranks_see_each_sample_once(train, tmp_path):
    train(*QUICK, processes=2)
    seen = [list(map(int, (tmp_path / f"seen-{r}.txt").read_text().split())) for r in (0, 1)]
    first, second = ([s[a:b] for s in seen] for a, b in ((0, 8), (8, 16)))
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(16))
    assert first != second


def test_A16_evaluation_of_a_set_that_nothing_divides_ends_and_agrees(train, tmp_path):
    train(*QUICK, "evaluate.batch_size=2")
    train(*QUICK, "evaluate.batch_size=2", "name=b", processes=2)
    one, two = (lines(tmp_path / "runs" / name, "evaluation")[-1] for name in "ab")
    assert one["samples"] == two["samples"] == 5
    assert one["metrics"]["target"] == two["metrics"]["target"] == 2.0
    assert one["metrics"]["loss"] == pytest.approx(two["metrics"]["loss"], rel=1e-5)


def test_A15_evaluating_every_few_steps_with_batch_norm_ends(train, tmp_path):
    words = (*QUICK, "task.batch_norm=true", "evaluate.every_steps=1", "evaluate.every_epochs=null")
    assert train(*words, processes=2).codes == [0, 0]
    assert [row["step"] for row in lines(tmp_path / "runs/a", "evaluation")] == [1, 2, 3, 4]


def test_A3_alone_and_in_a_world_of_two_the_losses_are_the_same(train, tmp_path):
    train(*QUICK)
    train(*QUICK, "name=b", processes=2)
    one, two = (lines(tmp_path / "runs" / name, "step") for name in "ab")
    assert [r["loss"] for r in one] == pytest.approx([r["loss"] for r in two], rel=1e-5)


def test_A19_one_process_of_a_node_prepares_and_the_other_waits(train, tmp_path):
    assert train(*QUICK, "task.sleep_s=1", processes=2).codes == [0, 0]
    assert (tmp_path / "prepared.txt").read_text() == "0\n"


def test_A19_a_prepare_that_fails_frees_those_who_wait(train, tmp_path):
    ended = train(*QUICK, "task.fault=prepare", processes=2, timeout_s=20)
    assert ended.codes == [1, 1]
    assert "OSError: no such mirror" in ended.outputs[0]
    assert ended.outputs[1] == ""
    assert status(tmp_path / "runs/a")["state"] == "failed"


@pytest.mark.parametrize("task", ["Longer", "LongerAtOnce"])
def test_a_rank_with_more_samples_ends_the_run_at_its_start(train, task):
    ended = train(*QUICK, f"task._target_=tests.tasks.{task}", processes=2, timeout_s=30)
    assert ended.codes == [2, 2]
    assert "'train' differs by rank: 16 samples on rank 0; 17 samples on rank 1" in ended.output
    assert ended.output.count("differs by rank") == 1


@pytest.mark.slow
def test_A13_who_waits_too_long_says_for_whom(train, tmp_path):
    ended = train(*QUICK, "task.sleep_s=6", "launch.timeout_s=2", processes=2, timeout_s=30)
    assert ended.codes == [1, 1]
    assert "rank 0 is in the task's prepare()" in ended.outputs[1]
    assert "raise launch.timeout_s" in ended.outputs[1]
    assert "Timeout: waited 2 s for the other ranks (launch.timeout_s)" in ended.outputs[1]
    assert "Traceback" not in ended.output
    assert "Timed out waiting" in (tmp_path / "runs/a/ranks/rank-1.log").read_text()


@pytest.mark.parametrize(
    ("fault", "said"),
    [("raise", "ValueError: boom"), ("memory", "lower train.global_batch_size")],
)
def test_A6_A18_the_rank_that_fails_first_has_the_last_word(train, tmp_path, fault, said):
    ended = train(*QUICK, f"task.fault={fault}", processes=2, timeout_s=30)
    assert ended.codes == [1, 1]
    last = "".join(ended.outputs[1].splitlines()[-3:])
    assert "rank 1 of 2 failed after step 1" in last
    assert said in last
    assert "tests/tasks.py:" in last
    assert "Traceback" not in ended.outputs[0]
    assert ended.outputs[0].splitlines()[-2].startswith("failed on rank 1")
    found = status(tmp_path / "runs/a")
    assert (found["state"], found["rank"]) == ("failed", 1)
    assert found["reason"] in ("ValueError: boom", found["reason"])
    assert not (tmp_path / "runs/a/lock").exists()


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("odd", "RuntimeError: \\udcff bad"),
        ("mute", "MuteError: it says nothing of itself: its __str__ raised KeyError"),
        ("endless", f"ValueError: {'x' * 10_000} ... (cut: 3,000,000 characters)"),
    ],
)
def test_a_failure_in_words_that_cannot_be_written_is_told_all_the_same(
    train, tmp_path, fault, said, processes
):
    failing = processes - 1
    words = (*QUICK, f"task.fault={fault}", f"task.fault_rank={failing}")
    ended = train(*words, processes=processes, timeout_s=30)
    assert ended.codes == [1] * processes
    told, place = ended.outputs[failing].splitlines()[-2:]
    assert told.endswith(f" failed after step {1 if processes == 2 else 0}: {said}")
    assert "tests/tasks.py:" in place
    assert len(ended.output) < 50_000
    assert "Logging error" not in ended.output
    found = status(tmp_path / "runs/a")
    assert (found["state"], found["rank"], found["reason"]) == ("failed", failing, said)
    assert lines(tmp_path / "runs/a", "end")[-1]["reason"] == said


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("kill", -9, "rank 1 of 2 failed after step 1: rank 1 left without a word"),
        ("leave", 0, "rank 1 of 2 failed after step 1: rank 1 left without a word"),
        ("exit", 1, "rank 1 of 2 failed after step 1: SystemExit: the task called sys.exit(0)"),
    ],
)
def test_A10_a_rank_that_leaves_early_ends_the_run_and_is_named(train, tmp_path, fault, code, said):
    ended = train(*QUICK, f"task.fault={fault}", processes=2, timeout_s=30)
    assert ended.codes == [1, code]
    assert said in ended.output
    found = status(tmp_path / "runs/a")
    assert (found["state"], found["rank"]) == ("failed", 1)


def test_A10_sys_exit_in_a_world_of_one_is_a_failure(train, tmp_path):
    ended = train(*QUICK, "task.fault=exit", "task.fault_rank=0")
    assert ended.codes == [1]
    assert "SystemExit" in ended.output
    assert status(tmp_path / "runs/a")["state"] == "failed"


def test_a_loss_that_is_not_finite_on_one_rank_skips_and_then_stops_all(train, tmp_path):
    words = (*QUICK, "task.fault=nan", "train.max_skipped=3", "train.epochs=9")
    ended = train(*words, processes=2)
    assert ended.codes == [1, 1]
    assert "no finite gradients for 3 steps in a row" in ended.output
    assert "the loss itself on rank 1" in ended.output
    assert "Traceback" not in ended.output
    assert [row["skipped"] for row in lines(tmp_path / "runs/a", "step")] == [1, 2, 3]
    assert status(tmp_path / "runs/a")["step"] == 3


def test_a_run_that_learnt_nothing_is_not_completed(train, tmp_path):
    ended = train(*QUICK, "task.fault=nan", processes=2)
    assert ended.codes == [1, 1]
    assert "not one of 4 steps had finite gradients" in ended.output
    assert not (tmp_path / "runs/a/lock").exists()


def test_an_iterable_dataset_trains_on_two_ranks(train, tmp_path):
    words = (*QUICK, "task.stream=true", "task.samples=19")
    assert train(*words, processes=2).codes == [0, 0]
    rows = lines(tmp_path / "runs/a", "step")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]  # 19 in batches of 8: 3 an epoch
    assert sum(
        row["metrics"]["target"] * n for row, n in zip(rows, (8, 8, 3), strict=False)
    ) == sum(range(19))


def test_B7_a_stream_that_fills_no_batch_is_refused(train):
    ended = train(*QUICK, "task.stream=true", "task.samples=5", "data.drop_last=true")
    assert ended.codes == [2]
    assert "0 batches an epoch: 5 samples in the stream" in ended.output


def test_early_stopping_ends_both_ranks_at_the_same_evaluation(train, tmp_path):
    words = (*QUICK, "train.epochs=50", "early_stop={metric: valid/target, patience: 2}")
    assert train(*words, processes=2).codes == [0, 0]
    assert status(tmp_path / "runs/a")["reason"] == "early_stop"
    assert len(lines(tmp_path / "runs/a", "evaluation")) == 3


def test_time_is_a_limit_that_all_ranks_agree_on(train, tmp_path):
    words = (*QUICK, "train.epochs=null", "train.max_minutes=0.02")
    assert train(*words, processes=2).codes == [0, 0]
    assert status(tmp_path / "runs/a")["reason"] == "train.max_minutes"


def test_D8_the_schedule_counts_optimizer_steps_whatever_the_processes(train, tmp_path):
    schedule = (
        "scheduler._target_=torch.optim.lr_scheduler.LinearLR",
        "scheduler.total_iters=${run:steps}",
        "scheduler.start_factor=1.0",
        "scheduler.end_factor=0.5",
    )
    rates = []
    for name, processes, accumulate in (("a", 1, 1), ("b", 2, 1), ("c", 2, 2)):
        more = (f"name={name}", f"train.accumulate={accumulate}")
        assert train(*QUICK, *schedule, *more, processes=processes).codes == [0] * processes
        rates.append([row["lr"] for row in lines(tmp_path / "runs" / name, "step")])
    assert rates[0] == pytest.approx([0.01, 0.00875, 0.0075, 0.00625])
    assert rates[0] == rates[1] == rates[2]


@pytest.mark.parametrize("precision", ["float64", "bfloat16", "float16"])
def test_every_precision_trains(train, tmp_path, precision):
    assert train(*QUICK, f"train.precision={precision}", "train.clip_norm=1").codes == [0]
    rows = lines(tmp_path / "runs/a", "step")
    assert rows[-1]["loss"] < rows[0]["loss"] * 2


def test_a_batch_of_one_with_batch_norm_is_explained(train, tmp_path):
    words = (*QUICK, "task.batch_norm=true", "task.samples=10", "train.global_batch_size=4")
    ended = train(*words, processes=2)
    assert ended.codes == [1, 1]
    assert "data.drop_last=true" in ended.output


def test_H7_the_table_of_hyperparameters_names_a_curve_that_exists(train, tmp_path):
    train(*QUICK)
    read = curves(tmp_path / "runs/a")
    tags = read.Tags()
    assert "config/text_summary" in tags["tensors"]
    summary = read.summary_metadata["_hparams_/experiment"].plugin_data.content
    assert b"valid/loss" in summary
    assert "valid/loss" in tags["scalars"]


def test_a_run_can_be_started_again_from_its_own_config(train, tmp_path):
    train(*QUICK)
    saved = tmp_path / "runs/a/config.yaml"
    copy = tmp_path / "again.yaml"
    copy.write_text(saved.read_text())
    assert train("again.yaml", "name=b").codes == [0]
    first, second = (lines(tmp_path / "runs" / name, "step") for name in "ab")
    assert [r["loss"] for r in first] == [r["loss"] for r in second]


def test_D23_a_run_folder_that_cannot_be_written_is_said_in_one_line(tmp_path):
    gone = tmp_path / "gone"
    folder = OpenFolder(gone, Lock(gone / "lock", 1.0))
    with ExitStack() as stack:
        tell = listen(load(), folder, stack)
        with pytest.raises(TrainingError, match=r"cannot write to the run folder .*gone.*No such"):
            tell(RunEnded("completed", 1, 1, "train.epochs", None, {}, 1.0))


@pytest.mark.parametrize("size", ["0", "-1", ".nan", ".inf"])
def test_a_bucket_of_no_size_is_refused_at_once(train, tmp_path, size):
    ended = train("strategy.name=ddp", f"strategy.bucket_mb={size}")
    assert ended.codes == [2]
    assert ended.output.startswith("strategy.bucket_mb: wanted a size in MB above 0, met ")
    assert not (tmp_path / "runs").exists()


def test_a_file_in_the_place_of_the_run_folder_is_said_and_kept(train, tmp_path):
    (tmp_path / "runs").write_text("in the way")
    ended = train(*QUICK, processes=1)
    assert ended.codes == [2]
    assert "runs=" in ended.output
    assert (tmp_path / "runs").read_text() == "in the way"
