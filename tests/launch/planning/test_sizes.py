"""Sizes and speeds as people type them."""

from __future__ import annotations

import pytest

from launch.config import ConfigError
from launch.planning.sizes import parse_bytes, parse_speed, shown_bytes


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("24GiB", 24 * 2**30), ("24GB", 24 * 10**9), ("512MiB", 2**29), ("0.5 gib", 2**29),
     ("7B", 7), ("1.5KiB", 1536)],
)  # fmt: skip
def test_sizes_are_read(text, wanted):
    assert parse_bytes(text, "device-memory") == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("100Gbit", 12.5e9), ("12GiB", 12 * 2**30), ("10Gbit/s", 1.25e9), ("1Gbps", None),
     ("25Gbitps", 3.125e9)],
)  # fmt: skip
def test_speeds_are_read(text, wanted):
    if wanted is None:
        with pytest.raises(ConfigError, match="such as 100Gbit"):
            parse_speed(text, "bandwidth")
    else:
        assert parse_speed(text, "bandwidth") == wanted


@pytest.mark.parametrize("text", ["24", "", "GiB", "24Gi", "-1GiB", "much", "1e3GiB", "0GiB"])
def test_what_is_no_size_is_refused_by_name(text):
    with pytest.raises(ConfigError, match=r"--device-memory: wanted .* such as 24GiB"):
        parse_bytes(text, "device-memory")


def test_sizes_are_shown_as_people_read_them():
    shown = [shown_bytes(size) for size in (2.5 * 2**30, 31 * 2**20, 1.5 * 2**20)]
    assert shown == ["2.5 GiB", "31 MiB", "1.5 MiB"]
