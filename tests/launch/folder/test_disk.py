import os

import pytest

from launch.folder.disk import replace_bytes, replace_text


def test_text_is_written_as_it_is(tmp_path):
    replace_text(tmp_path / "a", "Zeit\r\n µs\n")
    assert (tmp_path / "a").read_bytes() == "Zeit\r\n µs\n".encode()
    assert os.listdir(tmp_path) == ["a"]


def test_what_cannot_be_written_whole_leaves_the_old_file_and_no_part(tmp_path):
    replace_bytes(tmp_path / "a", b"old")
    with pytest.raises(TypeError):
        replace_bytes(tmp_path / "a", "no bytes")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_the_refusal_of_the_system_names_the_file(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="directory") as caught:
        replace_bytes(tmp_path / "a", b"new")
    assert caught.value.filename == str(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]
