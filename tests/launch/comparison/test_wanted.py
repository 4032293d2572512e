from dataclasses import replace
from pathlib import Path

import pytest

from launch.compare import FLAGS
from launch.comparison.asked import before, facts
from launch.comparison.header import Header
from launch.comparison.output import write
from launch.comparison.rows import ALL_CORES, rows
from launch.comparison.table import lines
from launch.comparison.turns import Foreseen, Found, Row, Turn
from launch.comparison.wanted import wanted
from launch.config import ConfigError, load, parse
from parallel import UsageError

DIGITS = str(Path(__file__).parents[3] / "configs" / "digits.yaml")


def asked(*words):
    parsed = parse([DIGITS, *words], FLAGS)
    return wanted(parsed, load(parsed.files, parsed.overrides))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--devices=0", r"--devices=0: wanted 1 to \d+; there (is|are) \d+ cores?"),
        ("--devices=4000", r"--devices=4000: wanted 1 to \d+"),
        ("--minutes=0", r"--minutes: wanted a number above 0, met 0; such as --minutes=2"),
        ("--steps=-1", r"--steps: wanted a number above 0, met -1"),
        ("--beside=", r"--beside wants a command, such as"),
        ("--beside=x", r"--beside wants --steps"),
    ],
)
def test_flags_that_cannot_be_are_refused(word, said):
    with pytest.raises(ConfigError, match=said):
        asked(word)


@pytest.mark.slow
def test_a_row_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"no row's name begins with 'dpd'; they are: single"):
        rows(asked("--rows=single,dpd", "--devices=1"))


@pytest.mark.slow
def test_one_device_has_one_way():
    assert [each.row.name for each in rows(asked("--devices=1"))] == ["single"]


def test_a_program_beside_is_a_row_of_its_own():
    found = rows(asked("--devices=1", "--beside=python train.py", "--steps=100", "--rows=single"))
    assert [each.row.name for each in found] == ["single", "train.py"]
    assert [each.row.is_beside for each in found] == [False, True]


def kept(what):
    row = Row("single", ("strategy.name=single",), 1, 1, 64, is_reference=True)
    found = [
        Found(row, [Turn(1, 1, 10, 0.5, 0.25)], problem="it broke"),
        Found(replace(row, name="x"), foreseen=Foreseen(problem="never"), problem="never"),
    ]
    header = Header("digits", "", "2 cores", 2, 2, 64, "", {}, facts(what), 30.0)
    write(what.folder, found, lines(found), header, "")
    return found


def test_what_was_found_earlier_is_gone_on_with_and_what_broke_tried_again(tmp_path):
    found = kept(asked(f"runs={tmp_path}"))
    earlier = before(asked(f"runs={tmp_path}"))
    assert earlier.spent_s == 30.0
    assert earlier.found == [replace(found[0], problem=""), found[1]]
    assert before(asked(f"runs={tmp_path}", "--anew")).found == []


def test_another_question_in_the_same_folder_is_refused_with_the_difference(tmp_path):
    kept(asked(f"runs={tmp_path}"))
    with pytest.raises(ConfigError, match=r"seed: 0 there, 7 here\n--anew replaces it; another"):
        before(asked(f"runs={tmp_path}", "seed=7"))


@pytest.mark.parametrize("content", ["", "[]", '{"header": {}}', '{"header": 1, "rows": 2}'])
def test_what_cannot_be_read_is_refused_with_the_way_on(tmp_path, content):
    what = asked(f"runs={tmp_path}")
    what.folder.mkdir()
    (what.folder / "compare.json").write_text(content)
    with pytest.raises(UsageError, match=r"compare.json is not what .*; --anew begins again"):
        before(what)


def test_an_empty_folder_is_a_beginning(tmp_path):
    assert before(asked(f"runs={tmp_path}")).found == []


@pytest.mark.slow
def test_rows_are_all_that_two_devices_allow():
    many = rows(asked("--devices=2", "--scale-batch"))
    own = [each.row for each in many if not each.row.is_scaled]
    assert [row.name for row in own[:5]] == ["single", ALL_CORES, "ddp", "fsdp", "model_parallel"]
    assert own[5].name.startswith("pipeline m=")
    assert [(row.devices, row.processes) for row in own[:3]] == [(1, 1), (2, 1), (2, 2)]
    scaled = [(each.row.name, each.row.batch) for each in many if each.row.is_scaled]
    assert scaled == [("ddp", 128), ("fsdp", 128)]
    assert all(each.foreseen.step_s and each.foreseen.bytes for each in [many[0], *many[2:6]])
