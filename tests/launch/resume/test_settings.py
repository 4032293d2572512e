"""Which values come from the configuration and which from the checkpoint."""

from __future__ import annotations

from collections import Counter

import pytest

from launch.resume.settings import carry_on, merge_groups


@pytest.mark.parametrize(
    ("saved", "then", "now", "result"),
    [
        (1, 1, 2, 2),  # never changed by training: a setting
        (5, 1, 2, 5),  # changed: progress
        ({"last": 3, "gamma": 0.1}, {"last": 0, "gamma": 0.1}, {"last": 0, "gamma": 0.5},
         {"last": 3, "gamma": 0.5}),
        ({"old": 1}, {"old": 0}, {"new": 7}, {"old": 1, "new": 7}),
        ([{"last": 3, "T": 9}], [{"last": 0, "T": 9}], [{"last": 0, "T": 4}],
         [{"last": 3, "T": 4}]),
        ([0.3], [0.1], [0.2], [0.3]),
        ([{"a": 1}], [{"a": 0}], [{"a": 0}, {"a": 0}], [{"a": 1}]),
        ({30: 1}, {30: 1}, Counter({30: 1}), Counter({30: 1})),
    ],
)  # fmt: skip
def test_what_training_changed_is_carried_on(saved, then, now, result):
    met = carry_on(saved, then, now)
    assert met == result
    assert type(met) is type(result)


@pytest.mark.parametrize(
    ("saved", "then", "now", "rate"),
    [
        (0.1, 0.1, 0.1, 0.1),
        (0.1, 0.1, 0.4, 0.4),  # no schedule: the new one
        (0.05, 0.1, 0.1, 0.05),  # half way down a schedule
        (0.05, 0.1, 0.4, 0.2),  # half way down another
        (0.05, 0.0, 0.4, 0.05),
    ],
)
def test_a_learning_rate_keeps_its_place_on_its_schedule(saved, then, now, rate):
    described = [{"groups": [{"params": ["w"], "lr": saved, "momentum": 0.9}]}]
    old, new = ([[{"lr": lr, "momentum": m}]] for lr, m in ((then, 0.9), (now, 0.5)))
    merge_groups(described, old, new)
    assert described == [
        {"groups": [{"params": ["w"], "lr": pytest.approx(rate), "momentum": 0.5}]}
    ]
