"""A run that was stopped or killed and started again ends with the bytes of one that was not."""

from __future__ import annotations

import pytest

slow = pytest.mark.slow  # more of the same, in other places and ways
WORLDS = pytest.mark.parametrize("processes", [pytest.param(1, marks=slow), 2])


def straight(train, left, words, processes):
    assert train(*words, "name=straight", processes=processes).codes == [0] * processes
    return left("straight").bytes()


def extend(train, words, stops, processes):
    """Train to each of ``stops`` steps in turn, by the same folder."""
    for stop in stops:
        ended = train(*words, f"train.max_steps={stop}", "name=again", processes=processes)
        assert ended.codes == [0] * processes, ended.output


STOPS = {
    "once": (3, 13),
    "often in one epoch": (1, 2, 4, 5, 13),
    "at an epoch's end": (6, 12, 13),
    "around it": (5, 6, 7, 13),
    "at the end": (13, 13),
}
QUICK = ("once, 1", "at an epoch's end, 2", "at the end, 1")


@pytest.mark.parametrize(
    ("processes", "stops"),
    [
        pytest.param(n, stops, id=f"{name}, {n}", marks=() if f"{name}, {n}" in QUICK else slow)
        for n in (1, 2)
        for name, stops in STOPS.items()
    ],
)
def test_D1_D3_D5_D6_D10_resumed_in_any_place_the_bytes_are_the_same(
    train, left, noisy, processes, stops
):
    wanted = straight(train, left, (*noisy, "train.max_steps=13"), processes)
    extend(train, noisy, stops, processes)
    assert left("again").bytes() == wanted


@pytest.mark.parametrize(
    "more",
    [
        ("data.workers=2",),
        pytest.param(("data.workers=2", "data.persistent=false"), marks=slow),
        ("task.batch_norm=true",),
        pytest.param(("train.accumulate=2", "train.clip_norm=0.5"), marks=slow),
        ("train.precision=float16",),
        pytest.param(
            (
                "train.precision=bfloat16",
                "optimizer._target_=torch.optim.SGD",
                "optimizer.momentum=.9",
            ),
            marks=slow,
        ),
        pytest.param(("task.stream=true",), marks=slow),
        ("task.stream=true", "data.workers=2"),
        pytest.param(("task.stream=true", "task.filtered=true", "task.samples=99"), marks=slow),
        pytest.param(("data.drop_last=true",), marks=slow),
    ],
    ids=" ".join,
)
def test_D3_D11_D22_with_workers_scaler_streams_and_more_the_bytes_are_the_same(
    train, left, noisy, more
):
    words = (*noisy, *more)
    wanted = straight(train, left, (*words, "train.max_steps=13"), 2)
    extend(train, words, (9, 11, 13), 2)  # the first steps of float16 only lower its scale
    assert left("again").bytes() == wanted


@WORLDS
def test_killed_at_once_after_a_checkpoint_it_goes_on_from_there(train, left, noisy, processes):
    words = (*noisy, "train.epochs=2", "checkpoint.every_steps=2")
    wanted = straight(train, left, words, processes)
    told = (*words, "name=again", "task.told_at=9", "task.signal=9")
    ended = train(*told, processes=processes, timeout_s=30)
    assert ended.codes[0] == -9
    assert train(*told, processes=processes).codes == [0] * processes
    assert left("again").lines("start")[-1]["step"] == 8
    different = left("again").bytes()
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert different[name] == wanted[name]


def test_D5_D7_the_learning_rate_of_each_step_is_that_of_the_unbroken_run(train, left, noisy):
    straight(train, left, (*noisy, "train.max_steps=13"), 1)
    extend(train, noisy, (2, 4, 5, 13), 1)
    rates = [[row["lr"] for row in left(name).lines("step")] for name in ("straight", "again")]
    assert len(rates[0]) == 13
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("OneCycleLR", ("scheduler.max_lr=0.1", "scheduler.total_steps=20")),
        pytest.param("LinearLR", ("scheduler.total_iters=9",), marks=slow),
        pytest.param("MultiStepLR", ("scheduler.milestones=[3,9]",), marks=slow),
        ("ReduceLROnPlateau", ("scheduler.patience=0", "scheduler.metric=valid/loss")),
        pytest.param(
            "CosineAnnealingWarmRestarts", ("scheduler.T_0=4", "scheduler.T_mult=2"), marks=slow
        ),
        pytest.param("CyclicLR", ("scheduler.base_lr=0.001", "scheduler.max_lr=0.1"), marks=slow),
    ],
)
def test_D5_every_kind_of_schedule_goes_on_where_it_was(train, left, noisy, kind, more):
    plain = [word for word in noisy if not word.startswith("scheduler")]
    words = (*plain, f"scheduler._target_=torch.optim.lr_scheduler.{kind}", *more)
    words = (*words, "evaluate.every_steps=1", "optimizer._target_=torch.optim.SGD")
    words = (*words, "optimizer.momentum=0.9")
    wanted = straight(train, left, (*words, "train.max_steps=13"), 1)
    extend(train, words, (5, 10, 13), 1)
    assert left("again").bytes() == wanted


def test_H1_H2_every_step_has_one_line_and_one_point(train, left, noisy, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = (*noisy, "train.epochs=2", "checkpoint.every_steps=5", "name=again")
    told = (*words, "task.told_at=9", "task.signal=9")
    train(*told)
    train(*told)
    assert [row["step"] for row in left("again").lines("step")] == list(range(1, 13))
    read = EventAccumulator(str(left("again").folder), size_guidance={"scalars": 0}).Reload()
    assert [e.step for e in read.Scalars("train/loss")] == list(range(1, 13))


def test_D19_completed_nothing_is_done_and_that_is_said(train, left, noisy):
    words = (*noisy, "train.max_steps=7", "name=again")
    train(*words)
    before = left("again").bytes()
    ended = train(*words)
    assert ended.codes == [0]
    assert "already complete: runs/again, 7 steps in 1 epochs" in ended.output
    fewer = train(*noisy, "train.max_steps=5", "name=again")
    assert "already complete" in fewer.output
    assert left("again").bytes() == before


def test_what_changed_in_the_configuration_is_said_and_holds(train, left, noisy):
    words = [word for word in noisy if not word.startswith("scheduler")]
    train(*words, "train.max_steps=3", "name=again")
    ended = train(*words, "train.max_steps=5", "optimizer.lr=0.005", "name=again")
    assert "note: optimizer.lr=0.005 (was 0.01)" in ended.output
    assert "note: train.max_steps=5 (was 3)" in ended.output
    assert [row["lr"] for row in left("again").lines("step")] == [0.01] * 3 + [0.005] * 2


SCHEDULES = {
    "CosineAnnealingLR": ("scheduler.T_max=${run:steps}",),
    "OneCycleLR": ("scheduler.max_lr=0.1", "scheduler.total_steps=${run:steps}"),
    "LinearLR": ("scheduler.total_iters=${run:steps}", "scheduler.end_factor=0.1"),
}


@pytest.mark.parametrize(
    "kind",
    ["CosineAnnealingLR", *(pytest.param(k, marks=slow) for k in ("OneCycleLR", "LinearLR"))],
)
def test_an_extended_run_follows_the_longer_schedule_from_there(train, left, noisy, kind):
    plain = [word for word in noisy if not word.startswith("scheduler")]
    words = (*plain, f"scheduler._target_=torch.optim.lr_scheduler.{kind}", *SCHEDULES[kind])
    train(*words, "train.max_steps=9", "name=long")
    for stop in (4, 9):
        ended = train(*words, f"train.max_steps={stop}", "name=again")
    assert "the schedule is another one now: after 4 steps its rate is" in ended.output
    long, again = ([row["lr"] for row in left(n).lines("step")] for n in ("long", "again"))
    assert again[4:] == long[4:]


def test_a_new_learning_rate_takes_the_place_that_the_schedule_has_come_to(train, left, noisy):
    train(*noisy, "train.max_steps=6", "name=low")
    train(*noisy, "train.max_steps=3", "name=again")
    train(*noisy, "train.max_steps=6", "optimizer.lr=0.02", "name=again")
    low, again = ([row["lr"] for row in left(n).lines("step")] for n in ("low", "again"))
    assert again == pytest.approx(low[:3] + [2 * rate for rate in low[3:]])


def test_without_its_scheduler_a_run_goes_on_at_the_optimizers_rate(train, left, noisy):
    train(*noisy, "train.max_steps=3", "name=again")
    ended = train(*noisy[:3], *noisy[5:], "train.max_steps=5", "name=again")
    assert "the scheduler is gone: the rate is optimizer.lr" in ended.output
    assert [row["lr"] for row in left("again").lines("step")][3:] == [0.01, 0.01]


def test_the_last_line_has_the_rate_of_the_last_step(train, left, noisy):
    train(*noisy, "train.max_steps=5", "name=each")
    train(*noisy, "train.max_steps=5", "name=some", "log.every_steps=4")
    each, some = ([row["lr"] for row in left(n).lines("step")] for n in ("each", "some"))
    assert some == [each[3], each[4]]


def test_a_metric_that_is_not_there_loses_nothing(train, left, noisy):
    best = "checkpoint.best={metric: valid/nope, mode: max}"
    ended = train(*noisy, "train.epochs=2", "name=again", best)
    assert ended.codes == [2]
    assert "valid/nope was not evaluated; there are valid/loss, valid/target" in ended.output
    assert left("again").state["step"] == 6
    right = "checkpoint.best={metric: valid/loss, mode: min}"
    assert train(*noisy, "train.epochs=2", "name=again", right).codes == [0]
    assert left("again").lines("start")[-1]["step"] == 6


def test_D12_the_schedule_waits_for_steps_that_were_skipped_and_after_resuming_too(
    train, left, noisy
):
    fault = ("fault.kind=nan", "fault.step=3")
    words = (*noisy, *fault, "name=again")
    for stop in (4, 8):
        assert train(*words, f"train.max_steps={stop}").codes == [0]
    assert train(*noisy, "train.max_steps=7", "name=straight").codes == [0]
    rates = {n: [row["lr"] for row in left(n).lines("step")] for n in ("again", "straight")}
    assert rates["again"] == [*rates["straight"][:3], *rates["straight"][2:]]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_model_with_an_expanded_buffer_is_saved_and_goes_on(train, left, noisy, processes):
    words = (*noisy, "task._target_=tests.tasks.Expanded")
    for name, steps in (("a", 4), ("a", 7), ("b", 7)):
        ended = train(*words, f"name={name}", f"train.max_steps={steps}", processes=processes)
        assert ended.codes == [0] * processes, ended.output
    assert left("a").bytes()["model.safetensors"] == left("b").bytes()["model.safetensors"]
    ended = train(*words, "name=c", "train.max_steps=1", "checkpoint.init_from=runs/a")
    assert ended.codes == [0], ended.output
