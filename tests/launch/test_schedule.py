"""Learning rates from a configuration, and what is said of schedules that cannot be followed."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD, lr_scheduler
from torch.utils.data import IterableDataset, TensorDataset

from launch.config import ConfigError, load
from launch.failures import TrainingError
from launch.prepare import check_updates
from launch.schedule import Schedule, make_schedule
from parallel import UsageError

AT = "torch.optim.lr_scheduler"
STEPS = 10

WARM_UP = f"""
scheduler:
  _target_: {AT}.SequentialLR
  milestones: [3]
  schedulers:
  - {{_target_: {AT}.LinearLR, start_factor: 0.1, total_iters: 3}}
  - {{_target_: {AT}.CosineAnnealingLR, T_max: "${{run:steps}}"}}
"""
CHAINED = f"""
scheduler:
  _target_: {AT}.ChainedScheduler
  schedulers:
  - {{_target_: {AT}.ConstantLR, factor: 0.5, total_iters: 4}}
  - _target_: {AT}.SequentialLR
    milestones: [2]
    schedulers:
    - {{_target_: {AT}.ExponentialLR, gamma: 0.9}}
    - {{_target_: {AT}.StepLR, step_size: 2}}
"""


def optimizer():
    return SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)


def warm_up(given):
    first = lr_scheduler.LinearLR(given, start_factor=0.1, total_iters=3)
    second = lr_scheduler.CosineAnnealingLR(given, T_max=STEPS)
    return lr_scheduler.SequentialLR(given, [first, second], milestones=[3])


def chained(given):
    first = lr_scheduler.ConstantLR(given, factor=0.5, total_iters=4)
    parts = [lr_scheduler.ExponentialLR(given, gamma=0.9), lr_scheduler.StepLR(given, 2)]
    return lr_scheduler.ChainedScheduler([first, lr_scheduler.SequentialLR(given, parts, [2])])


def rates(given, advance):
    met = []
    for _ in range(STEPS):
        met.append(given.param_groups[0]["lr"])
        given.step()
        advance()
    return met


@pytest.mark.parametrize(("text", "by_hand"), [(WARM_UP, warm_up), (CHAINED, chained)])
def test_a_schedule_made_of_others_is_torchs_own(tmp_path, text, by_hand):
    (tmp_path / "a.yaml").write_text(text)
    config = load([tmp_path / "a.yaml"])
    ours, theirs = [optimizer(), optimizer()], optimizer()
    schedule, own = make_schedule(config.scheduler, ours, STEPS, None), by_hand(theirs)
    ours[1].step()
    expected = rates(theirs, own.step)
    assert rates(ours[0], lambda: schedule.advance(skipped=False)) == expected
    assert ours[1].param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
    assert len(set(expected)) > 3


def checked(*words, samples=40, dataset=None):
    """Check 10 steps of 4 samples."""
    config = load([], ["train.global_batch_size=4", "train.epochs=1", *words])
    check_updates(config, {"train": dataset or TensorDataset(torch.zeros(samples, 1))})


def scheduler(name, *keys):
    return [f"scheduler._target_={AT}.{name}", *(f"scheduler.{key}" for key in keys)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            scheduler("OneCycleLR", "max_lr=0.1", "total_steps=9"),
            r"scheduler.total_steps=9 is too few: this run takes 10 .*total_steps=\${run:steps}'",
        ),
        (
            scheduler("OneCycleLR", "max_lr=0.1", "epochs=2", "steps_per_epoch=2"),
            "total_steps=4 is too few",
        ),
        (
            scheduler("StepLR", "step_size=0"),
            r"scheduler StepLR cannot take its next step: ZeroDivisionError: .*lengths count opti",
        ),
        (scheduler("CosineAnnealingLR", "T_max=0"), "CosineAnnealingLR cannot take its next step"),
        (scheduler("StepLR", "step_size=x"), "scheduler.step_size: wanted a whole number, met 'x'"),
        (
            scheduler("StepLR", "step_size=3", "metric=valid/loss"),
            "scheduler.metric=valid/loss: only ReduceLROnPlateau looks at a metric, not StepLR",
        ),
        (["optimizer._target_=torch.optim.LBFGS"], r"LBFGS evaluates the loss .*torch.optim.AdamW"),
        (["optimizer.lr=abc"], "optimizer.lr: wanted a number, met 'abc'; the default is .*=0.001"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_the_start(words, said):
    with pytest.raises(UsageError, match=said):
        checked(*words)


def test_a_schedule_inside_another_is_tried_too():
    first, second = (f"{{_target_: {AT}.StepLR, step_size: {size}}}" for size in (5, 0))
    words = scheduler("SequentialLR", "milestones=[2]", f"schedulers=[{first}, {second}]")
    with pytest.raises(ConfigError, match="scheduler SequentialLR cannot take its next step"):
        checked(*words)


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(1)


@pytest.mark.parametrize(
    "words",
    [
        scheduler("OneCycleLR", "max_lr=0.1", "total_steps=10"),
        scheduler("OneCycleLR", "max_lr=0.1", "total_steps=${run:steps}"),
        scheduler("ReduceLROnPlateau", "metric=valid/accuracy"),
        [*scheduler("OneCycleLR", "max_lr=0.1", "total_steps=9"), "train.max_minutes=1"],
    ],
)
def test_what_can_be_followed_passes(words):
    checked(*words)


def test_a_stream_may_end_before_the_schedule_does():
    words = scheduler("OneCycleLR", "max_lr=0.1", "total_steps=9")
    checked(*words, "train.max_steps=100", dataset=Stream())


def test_a_schedule_that_ends_before_the_run_says_what_to_look_at():
    given = optimizer()
    schedule = Schedule([lr_scheduler.OneCycleLR(given, max_lr=0.1, total_steps=2)])
    for _ in range(2):
        given.step()
        schedule.advance(skipped=False)
    with pytest.raises(TrainingError, match=r"OneCycleLR cannot .* 3 times.*\${run:steps} stands"):
        schedule.advance(skipped=False)
