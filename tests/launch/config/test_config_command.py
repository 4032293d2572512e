"""The words of a command line, sorted."""

from pathlib import Path

import pytest

from launch.config import ConfigError, parse

FLAGS = {"help": bool, "print-config": bool, "minutes": float, "nodes": int}


def test_files_overrides_and_flags_are_told_apart():
    parsed = parse(["a.yaml", "b.yml", "seed=3", "--minutes", "2", "--print-config"], FLAGS)
    assert parsed.files == (Path("a.yaml"), Path("b.yml"))
    assert parsed.overrides == ("seed=3",)
    assert parsed.flags == {"help": False, "print-config": True, "minutes": 2.0, "nodes": None}


@pytest.mark.parametrize("words", [["--minutes", "2"], ["--minutes=2"]])
def test_a_flag_takes_its_value_both_ways(words):
    assert parse(words, FLAGS).flags["minutes"] == 2.0


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_has_a_short_form(word):
    assert parse([word], FLAGS).flags["help"] is True


@pytest.mark.parametrize(
    ("word", "override"),
    [
        ("note=a=b", "note=a=b"),
        ("--optim.lr=0.1", "optim.lr=0.1"),
        ("data.path=/x:y=z", "data.path=/x:y=z"),
        ("note=two words", "note=two words"),
        ("task.file=other.yaml", "task.file=other.yaml"),
        ("optimizer.betas[1]=0.5", "optimizer.betas[1]=0.5"),
        ("name=", "name="),
    ],
)
def test_G7_equals_signs_dashes_and_paths_in_overrides(word, override):
    assert parse([word], FLAGS).overrides == (override,)


def test_a_folder_may_have_an_equals_sign():
    assert parse(["runs/a=b/config.yaml"], FLAGS).files == (Path("runs/a=b/config.yaml"),)


def test_local_rank_is_ignored_and_remembered():
    words = ["--local-rank=1", "--local_rank", "2", "seed=3", "--local-rank", "0"]
    parsed = parse(words, FLAGS)
    assert parsed.ignored == ("--local-rank=1", "--local_rank 2", "--local-rank 0")
    assert parsed.overrides == ("seed=3",)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--unknown", r"unknown flag --unknown \(known: --help, --print-config, --minutes"),
        ("--print_config", "did you mean '--print-config'"),
        ("--train.epochs", "a key of the configuration is set by train.epochs=VALUE"),
        ("-x", "unknown flag -x"),
        ("--help=1", "--help takes no value, met '1'"),
        ("--minutes", "--minutes: wanted a number, met ''"),
        ("--minutes=two", "--minutes: wanted a number, met 'two'"),
        ("--nodes=1.5", "--nodes: wanted a whole number, met '1.5'"),
        ("fast", "'fast' is neither FILE.yaml nor key=value; to set a key type fast=VALUE"),
        ("a b=3", "'a b' is not the name of a key"),
    ],
)
def test_a_word_that_is_nothing_is_refused(word, said):
    with pytest.raises(ConfigError, match=said):
        parse([word], FLAGS)


def test_a_file_named_without_its_ending_is_offered(write, tmp_path):
    write("mine.yaml", "")
    with pytest.raises(ConfigError, match=r"did you mean .*mine\.yaml"):
        parse([str(tmp_path / "mine")], FLAGS)


def test_a_folder_is_called_one(write, tmp_path):
    with pytest.raises(ConfigError, match=r"is a folder, wanted FILE.yaml .*; it holds no .yaml"):
        parse([str(tmp_path)], FLAGS)
    write("mine.yml", "")
    with pytest.raises(ConfigError, match=r"is a folder, .*; did you mean .*mine\.yml\?"):
        parse([str(tmp_path)], FLAGS)
