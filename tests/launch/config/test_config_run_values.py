"""Numbers that are known only when the run is."""

import pytest

from launch.config import ConfigError, load, with_run_values

TARGET = "scheduler._target_=torch.optim.lr_scheduler.OneCycleLR"


def test_they_stay_as_written_until_they_are_known():
    config = load([], [TARGET, "scheduler.total_steps=${run:steps}"])
    assert config.scheduler["total_steps"] == "${run:steps}"
    known = with_run_values(config.scheduler, steps=90, steps_per_epoch=9)
    assert known["total_steps"] == 90


def test_they_are_found_at_any_depth_and_inside_text():
    settings = {"a": ["${run:steps}", {"b": "${run:steps_per_epoch}"}], "c": "of ${run:steps}"}
    known = with_run_values(settings, 90, 9)
    assert known == {"a": [90, {"b": 9}], "c": "of 90"}


def test_they_can_be_referred_to():
    config = load([], [TARGET, "scheduler.a=${run:steps}", "scheduler.b=${scheduler.a}"])
    assert config.scheduler["b"] == "${run:steps}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${run:steps}", r"a=\${run:steps}: how many steps .* set train.max_steps=NUMBER"),
        ("${run:steps_per_epoch}", "the training data has no length; write the number itself"),
        ("${run:stepz}", "known of the run are steps and steps_per_epoch"),
    ],
)
def test_one_that_is_not_known_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        with_run_values({"a": text}, None, None)


def test_what_does_not_use_them_needs_none():
    assert with_run_values({"a": 1}, None, None) == {"a": 1}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("log.every_steps=${run:steps}", "known only inside optimizer and scheduler"),
        ("task.total=${run:steps}", "known only inside optimizer and scheduler"),
        ("scheduler.total=${run:stepz}", "known of the run are steps and steps_per_epoch"),
    ],
)
def test_load_refuses_them_where_nobody_would_fill_them_in(override, said):
    with pytest.raises(ConfigError, match=said):
        load([], [override])
