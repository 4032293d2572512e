"""What goes wrong on one stage ends all ranks, and that stage is named."""

from __future__ import annotations

from time import monotonic

import pytest

WORDS = (
    "task._target_=tests.staged.Waves",
    "task.samples=64",
    "strategy.name=pipeline",
    "strategy.split=[2]",
    "strategy.balance=params",
    "train.global_batch_size=8",
    "evaluate.every_epochs=null",
    "launch.timeout_s=6",
    "name=a",
)
LAYERS = {0: 0, 1: 4}  # one of each stage
slow = pytest.mark.slow


def fail(train, fault, stage, where):
    """Return what the failing stage, and the other, wrote, how they ended, and the seconds."""
    start = monotonic()
    ended = train(
        *WORDS,
        f"task.fault={fault}",
        f"task.layer={LAYERS[stage]}",
        f"task.where={where}",
        processes=2,
    )
    seconds = monotonic() - start
    return ended.outputs[stage], ended.outputs[1 - stage], ended.codes, seconds


@pytest.mark.parametrize(
    ("fault", "said", "place"),
    [
        ("raise", "ValueError: boom", "tests/tasks.py"),
        pytest.param(
            "exit", "SystemExit: the task called sys.exit(0)", "tests/tasks.py", marks=slow
        ),
        pytest.param("hang", "Hang: no progress for", "tests/staged.py", marks=slow),
    ],
)
@pytest.mark.parametrize("where", ["forward", pytest.param("backward", marks=slow)])
@pytest.mark.parametrize("stage", [0, pytest.param(1, marks=slow)])
def test_a_stage_that_fails_tells_why_and_where(train, fault, said, place, where, stage):
    own, _, codes, seconds = fail(train, fault, stage, where)
    assert f"rank {stage} of 2 failed after step 2: {said}" in own
    assert place in own
    assert codes == [1, 1]
    assert seconds < 20


@pytest.mark.parametrize("fault", ["kill", pytest.param("leave", marks=slow)])
@pytest.mark.parametrize("where", ["backward", pytest.param("forward", marks=slow)])
@pytest.mark.parametrize("stage", [0, pytest.param(1, marks=slow)])
def test_a_stage_that_is_gone_is_named_by_the_other(train, fault, where, stage):
    _, other, codes, seconds = fail(train, fault, stage, where)
    assert f"rank {stage} of 2 failed after step 2: rank {stage} left without a word" in other
    assert codes[1 - stage] == 1
    assert seconds < 20
