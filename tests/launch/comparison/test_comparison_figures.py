import math

import pytest

from launch.comparison.figures import counted, digits, duration, listed, one_line, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1.00"),
        (1.8449, "1.84"),
        (9.999, "10.0"),
        (99.96, "100"),
        (12345, "12,300"),
        (0.012345, "0.0123"),
        (0.000099, "9.90e-05"),
        (-2.5, "-2.50"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert digits(value) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.0"), (0.004, "0.4"), (0.0996, "10"), (0.435, "44"), (1, "100")]
)
def test_shares_are_hundredths(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.50 s"), (0.0012, "1.20 ms"), (0.00009, "90.0 us")]
)
def test_durations_have_the_unit_in_which_they_read_best(seconds, text):
    assert duration(seconds) == text


def test_names_are_listed_as_in_a_sentence():
    assert [listed(names) for names in (["a"], ["a", "b"], "abc")] == ["a", "a and b", "a, b and c"]


def test_one_is_singular():
    assert (counted(1, "core"), counted(1200, "step")) == ("1 core", "1,200 steps")


def test_a_reason_is_one_line_and_not_endless():
    assert one_line("out of\n  memory", 80) == "out of memory"
    assert one_line("word " * 80, 20) == "word word word wo..."
