"""YAML in and out."""

import pytest

from launch.config import ConfigError, load
from launch.config.text import plain_value
from launch.config.text import write as written

CASES = [
    ("null", None), ("~", None), ("", None), ("Null", None),
    ("true", True), ("on", True), ("No", False), ("off", False),
    ("3", 3), ("-3", -3), ("+3", 3), ("1_000", 1000), ("0x10", 16), ("0b11", 3), ("0o17", 15),
    ("1e-4", 1e-4), ("5E3", 5000.0), ("1.", 1.0), (".5", 0.5), ("-1.5e+2", -150.0),
    (".inf", float("inf")), ("-.inf", float("-inf")),
    ("007", "007"), ("12:30:00", "12:30:00"), ("2026-01-31", "2026-01-31"), ("1.2.3", "1.2.3"),
    ("e5", "e5"), ("-", "-"), ("1e", "1e"), ("None", "None"), ("nan", "nan"), ("y", "y"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), CASES)
def test_what_unquoted_text_stands_for(text, value):
    met = plain_value(text)
    assert met == value
    assert type(met) is type(value)


@pytest.mark.parametrize("text", [text for text, _ in CASES])
def test_text_survives_being_written(write, text):
    file = write("a.yaml", written({"task": {"x": text, text or "empty": 1}}))
    task = load([file]).task
    assert task["x"] == text
    assert task[text or "empty"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed: 1\ntrain: [1", r"a\.yaml, line 2: this is not YAML: expected"),
        ("seed: 1\n\tx: 2", r"a\.yaml, line 2: this is not YAML: found character"),
        ("seed: 1\ntask: {b: 1, b: 2}", r"line 2: the key 'b' was already given in line 2"),
        ("seed: 1\nname: a\nseed: 2", r"a\.yaml, line 3: the key 'seed' was .* in line 1"),
        ("- a", "wanted lines of 'key: value' at the top, met a list"),
        ("seed", "wanted lines of 'key: value' at the top, met 'seed'"),
        ("seed: 1\n---\nseed: 2", r"a\.yaml, line 2: this is not YAML: but found another document"),
        ("task:\n  x: !mine 3", "line 2: the YAML tag '!mine' is not known here"),
        ("task: !!python/object/apply:os.getcwd []", "line 1: the YAML tag .*os.getcwd"),
        ("task: {[1]: 2}", "line 1: wanted a name before the colon"),
        ("task: &a {x: *a}", "stands inside its own anchor"),
        ("task: *a", "undefined alias"),
        ("seed: 1\ntask: {x: ???}", r"line 2: this is not YAML: .*; between braces \?\?\? stands"),
    ],
)
def test_what_is_not_yaml_is_named_with_file_and_line(write, text, said):
    with pytest.raises(ConfigError, match=said):
        load([write("a.yaml", text)])


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as a text file"):
        load([tmp_path / "a.yaml"])
    (tmp_path / "b.yaml").write_bytes(b"a: \x07")
    with pytest.raises(ConfigError, match="this is not YAML"):
        load([tmp_path / "b.yaml"])


def test_three_question_marks_in_braces_are_explained_on_the_command_line_too():
    with pytest.raises(ConfigError, match=r"task=.*not YAML: .*'\?\?\?', or its key on a .* own$"):
        load([], ["task={x: ???}"])
    with pytest.raises(ConfigError, match=r"no value yet for task\.x"):
        load([], ["task={x: '???'}"])


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}"])
def test_an_empty_file_is_not_taken_for_the_built_in_run(write, text):
    with pytest.raises(ConfigError, match=r"mine\.yaml has no keys: .* give no file"):
        load([write("mine.yaml", text)])


def test_anchors_and_merge_keys_are_understood(write):
    text = """
        task:
          base: &base {width: 3, depth: 1}
          wide: {<<: *base, width: 9}
          same: *base
    """
    task = load([write("a.yaml", text)]).task
    assert task["wide"] == {"width": 9, "depth": 1}
    assert task["same"] == {"width": 3, "depth": 1}


def test_keys_that_look_like_switches_stay_text(write):
    assert load([write("a.yaml", "task: {on: 1, no: 2}")]).task["no"] == 2
