"""Two factors, kept by one program for another."""

from __future__ import annotations

import json

import pytest

from launch.planning.corrections import (
    Factors,
    factors_of,
    name_of,
    read_corrections,
    write_factors,
)
from launch.planning.machine import Machine

HERE = Machine(2, name="Quick CPU", cores=3)
OWN = "2 x Quick CPU, 3 core(s) each"


@pytest.mark.parametrize(
    ("pairs", "wanted"),
    [
        ([], 1.0),
        ([(1.0, 1.1), (2.0, 2.4), (3.0, 2.7)], 1.1),
        ([(0.0, 1.0), (1.0, 0.0), (1.0, 2.0)], 2.0),
        ([(1.0, 1000.0)], 10.0),
    ],
)
def test_a_factor_is_the_median_of_measured_over_foreseen(pairs, wanted):
    found = factors_of(HERE, pairs, [])
    assert (found.time, found.memory) == (pytest.approx(wanted), 1.0)
    assert found.machine == name_of(HERE) == OWN


def test_what_was_written_is_read_and_said_in_one_line(tmp_path):
    path = tmp_path / "compare-a" / "factors.json"
    write_factors(path, Factors(1.08, 0.97, OWN, "2030-01-02"))
    found = read_corrections(path, HERE)
    assert found.factors == Factors(1.08, 0.97, OWN, "2030-01-02")
    assert found.note == (
        f"corrected by what was measured on 2030-01-02: times x 1.08, memory x 0.97 ({path})"
    )
    assert [each.name for each in path.parent.iterdir()] == ["factors.json"]


def test_none_is_no_news(tmp_path):
    found = read_corrections(tmp_path / "factors.json", HERE)
    assert (found.factors, found.note) == (Factors(), "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "wanted time and memory"),
        ("\xff", "cannot be read"),
        (json.dumps({"time": 1.0, "memory": 1.0}), "wanted time and memory"),
        (json.dumps({"time": True, "memory": 1.0, "machine": OWN}), "wanted time and memory"),
        (json.dumps({"time": 99.0, "memory": 1.0, "machine": OWN}), "wanted time and memory"),
        ('{"time": NaN, "memory": 1.0, "machine": "x"}', "wanted time and memory"),
        (json.dumps({"time": 2.0, "memory": 1.0, "machine": "another"}), "it is of another"),
    ],
)
def test_a_file_that_cannot_be_used_is_left_alone_with_a_note(tmp_path, text, said):
    path = tmp_path / "factors.json"
    path.write_bytes(text.encode("latin-1"))
    found = read_corrections(path, HERE)
    assert found.factors == Factors()
    assert said in found.note
    assert path.read_bytes() == text.encode("latin-1")
