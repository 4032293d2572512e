"""Runs whose model is split over ranks: each saves its part, and any strategy goes on from it."""

from __future__ import annotations

import json
import os

import pytest
import torch

from launch.checkpoint import newest, read

pytestmark = pytest.mark.slow  # its gist is in the quick suite too


SPLIT = "strategy._target_=tests.split.Split"
SINGLE = "strategy.name=single"
slow = pytest.mark.slow
BOTH = pytest.mark.parametrize("asynchronous", ["false", "true"])


@pytest.fixture
def words(noisy):
    return (*noisy, "task._target_=tests.split.Parted", "checkpoint.every_epochs=null")


def tensors(left, name):
    model, optimizer, _ = read(left(name).folder / "checkpoints/last")
    return {**model, **{f"optimizer {key}": value for key, value in optimizer.items()}}


def files(left, name):
    return sorted(left(name).bytes())


def hidden(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def go(train, *words, processes):
    ended = train(*words, processes=processes)
    assert ended.codes == [0] * processes, ended.output
    return ended


@pytest.mark.parametrize(
    "worlds",
    [
        [2, 3, 1, 2],
        pytest.param([3, 2, 1, 3], marks=slow),
        pytest.param([1, 3, 2, 1], marks=slow),
    ],
    ids=str,
)
def test_E18_saved_by_any_number_of_ranks_any_other_goes_on_with_the_same_bits(
    train, left, words, worlds
):
    go(train, *words, SINGLE, "train.max_steps=12", "name=straight", processes=1)
    for number, processes in enumerate(worlds, 1):
        strategy = SINGLE if processes == 1 else SPLIT
        stop = f"train.max_steps={3 * number}"
        go(train, *words, strategy, stop, "name=again", processes=processes)
    ours, wanted = tensors(left, "again"), tensors(left, "straight")
    assert ours.keys() == wanted.keys()
    assert all(ours[name].equal(wanted[name]) for name in wanted)
    assert left("again").lines("start")[-1]["step"] == 9


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=slow)])
def test_E18_resumed_by_as_many_ranks_the_bytes_are_those_of_an_unbroken_run(
    train, left, words, processes
):
    words = (*words, SPLIT, "task.dropout=0.5", "task.batch_norm=true")
    go(train, *words, "train.max_steps=10", "name=straight", processes=processes)
    for stop in (3, 7, 10):
        go(train, *words, f"train.max_steps={stop}", "name=again", processes=processes)
    assert left("again").bytes() == left("straight").bytes()
    of = f"of-0000{processes}"
    assert files(left, "again") == sorted(
        ["MANIFEST.json", "state.json"]
        + [f"{kind}.safetensors.index.json" for kind in ("model", "optimizer")]
        + [
            f"{kind}-0000{rank + 1}-{of}.safetensors"
            for kind in ("model", "optimizer")
            for rank in range(processes)
        ]
    )


def test_E18_replicas_go_on_from_a_split_model_and_back(train, left, words):
    words = (*words, "train.precision=float64")
    go(train, *words, SINGLE, "train.max_steps=9", "name=straight", processes=1)
    for stop, strategy in ((3, SPLIT), (6, "strategy.name=ddp"), (9, SPLIT)):
        go(train, *words, strategy, f"train.max_steps={stop}", "name=again", processes=2)
    ours, wanted = tensors(left, "again"), tensors(left, "straight")
    torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-12)


def test_where_one_rank_holds_all_the_files_are_those_of_one_process(train, left, words):
    go(train, *words, SINGLE, "train.max_steps=3", "name=one", processes=1)
    go(train, *words, SPLIT, "strategy.spare=1", "train.max_steps=3", "name=two", processes=2)
    ours, wanted = left("two").bytes(), left("one").bytes()
    assert ours.keys() == wanted.keys()
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert ours[name] == wanted[name]
    plain = ("optimizer._target_=torch.optim.SGD", "train.max_steps=3", "name=none")
    go(train, *words, *plain, SPLIT, processes=2)
    held = files(left, "none")  # this optimizer keeps nothing
    assert "optimizer.safetensors" in held
    assert "model-00002-of-00002.safetensors" in held


def test_the_index_says_where_each_tensor_lies(train, left, words):
    go(train, *words, SPLIT, "strategy.spare=1", "train.max_steps=1", "name=a", processes=3)
    held = left("a").bytes()
    index = json.loads(held["model.safetensors.index.json"])
    one, two = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    assert index["weight_map"] == {
        "turn": one,
        "ballast": two,
        "0.weight": one,
        "0.bias": two,
        "1.weight": one,
        "1.bias": two,
        "2.weight": one,
        "4.weight": two,  # tied to the one before, and on another rank
        "5.weight": one,
        "5.bias": two,
    }
    numbers = 2 * 2 + 12 + 4 + 4 + 4 + 16 + 16 + 4 + 1
    assert index["metadata"] == {"total_size": 4 * numbers}


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=slow)])
def test_written_in_the_background_the_bytes_are_the_same(train, left, words, processes):
    words = (*words, SPLIT, "task.ballast=2000000", "checkpoint.every_steps=4")
    for name in ("false", "true"):
        more = (f"checkpoint.asynchronous={name}", f"name={name}", "train.max_steps=9")
        go(train, *words, *more, processes=processes)
        assert left(name).steps() == [8, 9]
        assert [row["step"] for row in left(name).lines("checkpoint")] == [4, 8, 9]
        assert hidden(left(name).folder / "checkpoints") == []
    assert left("true").bytes() == left("false").bytes()


@BOTH
def test_told_to_stop_the_last_one_is_whole_and_the_run_goes_on(train, left, words, asynchronous):
    words = (*words, SPLIT, f"checkpoint.asynchronous={asynchronous}", "task.ballast=2000000")
    words = (*words, "checkpoint.every_steps=4", "train.max_steps=9", "name=again")
    ended = train(*words, "task.told_at=5", "task.told=1", processes=2)
    assert ended.codes == [75, 75], ended.output
    assert left("again").status["state"] == "stopped"
    found, skipped = newest(left("again").folder / "checkpoints")
    assert (found.name, skipped) == (f"step-{left('again').status['step']:08d}", [])
    go(train, *words, "task.told_at=5", "task.told=1", processes=2)
    assert left("again").lines("start")[-1]["step"] == int(found.name[5:])


@pytest.mark.parametrize(
    ("asynchronous", "killed"),
    [
        ("false", 1),
        pytest.param("false", 0, marks=slow),
        ("true", 1),
        pytest.param("true", 0, marks=slow),
    ],
)
def test_killed_between_the_shards_the_one_before_it_is_whole(
    train, left, words, asynchronous, killed
):
    words = (*words, SPLIT, f"checkpoint.asynchronous={asynchronous}", "task.ballast=10000000")
    words = (*words, "checkpoint.every_steps=3", "train.max_steps=9", "task.slow_s=0.05")
    told = (*words, "task.killed_at=6", f"task.killed={killed}", "name=again")
    ended = train(*told, processes=2, timeout_s=40)
    assert (ended.codes[killed], ended.codes[1 - killed]) == (-9, 1), ended.output
    assert f"rank {killed} left without a word" in ended.output
    folder = left("again").folder / "checkpoints"
    found, skipped = newest(folder)
    assert (found.name, skipped) == ("step-00000003", [])
    assert bool(hidden(folder)) == (killed == 0), "rank 0 clears away, where it can"
    go(train, *told, processes=2)
    go(train, *words, "name=straight", processes=2)
    assert left("again").lines("start")[-1]["step"] == 3
    assert hidden(folder) == []
    again, straight = left("again").bytes(), left("straight").bytes()
    assert again.pop("state.json") != straight.pop("state.json")  # it holds the task's settings
    assert again.pop("MANIFEST.json") != straight.pop("MANIFEST.json")
    assert again == straight


def test_a_truncated_shard_is_named_and_the_one_before_it_taken(train, left, words):
    words = (*words, SPLIT, "checkpoint.every_steps=2", "train.max_steps=9", "name=again")
    words = (*words, "fault.kind=truncate", "fault.step=7")
    assert train(*words, processes=2, timeout_s=30).codes[0] == -9
    ended = go(train, *words, processes=2)
    assert "step-00000006: model-00001-of-00002.safetensors has 100 bytes" in ended.output
    assert left("again").lines("start")[-1]["step"] == 4


def failures(output):
    return [line for line in output.splitlines() if "cannot write checkpoint" in line]


@pytest.fixture
def full(words):
    """Words for a run in which there is no room for a shard after step 5."""
    more = ("task.ballast=250000", "checkpoint.every_steps=2", "train.max_steps=9", "name=again")
    return (*words, SPLIT, *more, "task.slow_s=0.1", "task.full_at=5")


@BOTH
@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=slow)])
def test_D23_without_room_for_one_shard_all_ranks_end_and_that_rank_is_named(
    train, left, full, asynchronous, rank
):
    words = (*full, f"task.full={rank}", f"checkpoint.asynchronous={asynchronous}")
    ended = train(*words, processes=2, timeout_s=40)
    assert ended.codes == [1, 1], ended.output
    [line] = failures(ended.output)
    assert f"/step-00000006: rank {rank}: File too large; the checkpoints before it are" in line
    assert ended.outputs[0].splitlines()[-1] == line
    folder = left("again").folder / "checkpoints"
    found, skipped = newest(folder)
    assert (found.name, skipped, hidden(folder)) == ("step-00000004", [], [])
    assert os.readlink(folder / "last") == "step-00000004"
    go(train, *words, processes=2)
    assert left("again").lines("start")[-1]["step"] == 4


@BOTH
def test_D23_told_to_go_on_without_a_shard_it_says_so_and_saves_the_next(
    train, left, full, asynchronous
):
    words = (*full, f"checkpoint.asynchronous={asynchronous}", "checkpoint.on_error=go_on")
    ended = go(train, *words, "task.full_at=3", "task.free_at=8", processes=2)
    told = failures(ended.output)
    assert [line.partition(": rank 1: File too large")[0][-1] for line in told] == ["4", "6"]
    assert all(line.endswith("training goes on without it") for line in told)
    assert left("again").steps() == [8, 9]
    assert hidden(left("again").folder / "checkpoints") == []


@BOTH
@pytest.mark.parametrize("last", [8, pytest.param(9, marks=slow)])
def test_D23_told_to_go_on_it_fails_where_the_last_shard_cannot_be_written(
    train, left, full, asynchronous, last
):
    words = (*full, f"checkpoint.asynchronous={asynchronous}", "checkpoint.on_error=go_on")
    ended = train(*words, f"train.max_steps={last}", processes=2, timeout_s=40)
    assert ended.codes == [1, 1], ended.output
    *told, end = failures(ended.output)
    assert len(told) == 2
    assert f"step-0000000{last}: rank 1: File too large" in end
    assert end.startswith(f"the run failed after step {last}: ")
    assert left("again").steps() == [2, 4]


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("odd", "rank 1: cannot save a checkpoint of step 2: odd is a meta, sparse or quantized"),
        ("twice", "0.weight is in the shards of two ranks"),
    ],
)
@BOTH
def test_what_cannot_be_saved_on_another_rank_ends_the_run_with_its_name(
    train, left, words, mistake, text, asynchronous
):
    words = (*words, SPLIT, f"checkpoint.asynchronous={asynchronous}", "name=a")
    more = (f"strategy.mistake={mistake}", "checkpoint.every_steps=2", "checkpoint.on_error=go_on")
    ended = train(*words, *more, processes=2)
    assert ended.codes == [1, 1]
    assert text in ended.outputs[0].splitlines()[-1]
    assert list((left("a").folder / "checkpoints").iterdir()) == []


def test_the_best_is_kept_beside_the_newest(train, left, words):
    best = "checkpoint.best={metric: valid/loss, mode: max}"  # it gets worse: the first is the best
    more = ("evaluate.every_steps=2", "checkpoint.every_steps=2", "checkpoint.keep=1")
    go(train, *words, SPLIT, best, *more, "train.max_steps=8", "name=a", processes=2)
    found = left("a").folder / "checkpoints"
    judged = {row["step"]: row["metrics"]["loss"] for row in left("a").lines("evaluation")}
    first = max(judged, key=judged.get)
    assert (found / "best").readlink().name == f"step-{first:08d}"
    assert left("a").steps() == sorted({first, 8})


def test_initial_weights_may_come_from_the_shards_of_a_run(train, left, words):
    go(train, *words, SPLIT, "train.max_steps=3", "name=a", processes=2)
    rate = ("optimizer.lr=0", "scheduler=null", "optimizer.weight_decay=0")
    plain = [word for word in words if not word.startswith("scheduler")]
    begin = ("checkpoint.init_from=runs/a", "train.max_steps=1", "name=b", *rate)
    ended = go(train, *plain, SINGLE, *begin, processes=1)
    assert "initial weights from runs/a/checkpoints/last/model.safetensors.index.json" in (
        ended.output
    )
    ours, wanted = (read(left(name).folder / "checkpoints/last")[0] for name in "ba")
    assert ours["0.weight"].equal(wanted["0.weight"])
    assert ours["4.weight"].equal(wanted["4.weight"])


def test_a_task_that_keeps_state_of_its_own_is_refused_before_the_first_step(train, left, words):
    ended = train(*words, SPLIT, "task._target_=tests.tasks.Noisy", "name=a", processes=2)
    assert ended.codes == [2, 2]
    [line] = [line for line in ended.output.splitlines() if "state_dict()" in line]
    assert line.startswith("Noisy.state_dict() is saved as rank 0 holds it, and this strategy")
    assert line.endswith("or train with strategy.name=ddp")
    assert left("a").lines("step") == []


@BOTH
@pytest.mark.parametrize("gone_at", [3, 6], ids=["at a save", "at the last"])
def test_a_run_folder_that_is_gone_ends_all_ranks_with_that(train, noisy, asynchronous, gone_at):
    words = ("task._target_=tests.tasks.Gone", f"task.gone_at={gone_at}", "name=a", *noisy[1:])
    words = (*words, SPLIT, f"checkpoint.asynchronous={asynchronous}", "checkpoint.every_steps=4")
    ended = train(*words, "train.max_steps=6", processes=2, timeout_s=30)
    assert ended.codes == [1, 1], ended.output
    assert "the run folder runs/a was removed, or moved away, while" in ended.output
