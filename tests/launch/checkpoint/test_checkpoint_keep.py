"""Which checkpoints stay."""

from __future__ import annotations

import os
import shutil

import pytest

from launch.checkpoint import Order, Writer, link
from launch.checkpoint.keep import retain, to_remove


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.is_symlink())


def step(number):
    return f"step-{number:08d}"


@pytest.mark.parametrize(
    ("steps", "keep", "best", "broken", "go"),
    [
        ([5, 4, 3], 2, None, (), [3]),
        ([5, 4, 3], 9, None, (), []),
        ([5, 4, 3, 2], 1, 3, (), [4, 2]),
        ([5, 4, 3], 2, 5, (), [3]),
        ([5, 4, 3], 2, None, (4,), [4]),
        ([5, 4, 3, 2], 2, 4, (4,), [2]),
        ([5], 1, None, (), []),
    ],
)
def test_the_newest_whole_ones_and_the_best_stay(steps, keep, best, broken, go):
    assert to_remove(steps, keep, best, broken) == go


def test_D17_six_saves_leave_two_and_the_best(tmp_path, model):
    writer = Writer(tmp_path, keep=2)
    for number in range(1, 7):
        writer.write(Order(number, 0, model, {}, {}, best=number in (1, 3)))
    assert [each.error for each in writer.finished()] == [None] * 6
    assert names(tmp_path) == [step(3), step(5), step(6)]
    assert os.readlink(tmp_path / "best") == step(3)
    assert os.readlink(tmp_path / "last") == step(6)


def test_D15_the_only_one_stays_where_the_next_cannot_be_written(tmp_path, model, files_of):
    writer = Writer(tmp_path, keep=1)
    writer.write(Order(1, 0, model, {}, {}))
    before = files_of(tmp_path)
    (tmp_path / ".step-00000002.part").mkdir()
    writer.write(Order(2, 0, model, {}, {"made": {1, 2}}))
    first, second = writer.finished()
    assert first.error is None
    assert "state.made is a set" in str(second.error)
    assert files_of(tmp_path) == before
    writer.write(Order(3, 0, model, {}, {}))
    assert names(tmp_path) == [step(3)]


def test_what_is_not_ours_is_never_touched(tmp_path, save, files_of):
    for name in ("notes", ".mine.part", ".mine.old", "step-00000001.old", "step-1", "model.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("mine")
    (tmp_path / step(1)).mkdir()  # named as one of ours, and yet none
    (tmp_path / step(1) / "thesis.txt").write_text("mine")
    (tmp_path / step(2)).write_text("mine")
    save(tmp_path / "elsewhere", 3)
    (tmp_path / step(3)).symlink_to(tmp_path / "elsewhere" / step(3))
    before = files_of(tmp_path)
    for number in (4, 5, 6):
        retain(save(tmp_path, number), 1)
    after = files_of(tmp_path)
    assert {name: after[name] for name in before} == before
    assert (tmp_path / step(6)).is_dir()
    assert (tmp_path / step(3)).is_symlink()
    assert not (tmp_path / step(5)).exists()


def test_a_best_one_that_a_user_deleted_is_no_fault(tmp_path, model):
    writer = Writer(tmp_path, keep=1)
    writer.write(Order(1, 0, model, {}, {}, best=True))
    shutil.rmtree(tmp_path / step(1))
    writer.write(Order(2, 0, model, {}, {}))
    writer.write(Order(3, 0, model, {}, {}))
    assert [each.error for each in writer.finished()] == [None] * 3
    assert names(tmp_path) == [step(3)]


def test_newer_broken_ones_neither_count_nor_go_before_training_is_past_them(tmp_path, save, model):
    for number in (1, 2, 5):
        save(tmp_path, number)
    (tmp_path / step(5) / "model.safetensors").write_bytes(b"")
    writer = Writer(tmp_path, keep=2, broken=[tmp_path / step(5)])
    writer.write(Order(3, 0, model, {}, {}))
    assert names(tmp_path) == [step(2), step(3), step(5)]
    writer.write(Order(6, 0, model, {}, {}))
    assert names(tmp_path) == [step(3), step(6)]


def test_a_broken_one_that_training_writes_again_counts(tmp_path, save, model):
    for number in (1, 2):
        save(tmp_path, number)
    writer = Writer(tmp_path, keep=2, broken=[tmp_path / step(2)])
    for number in (2, 3):
        writer.write(Order(number, 0, model, {}, {}))
    assert names(tmp_path) == [step(2), step(3)]


def test_a_link_to_the_best_in_another_folder_keeps_nothing_here(tmp_path, save):
    link(tmp_path, "best", tmp_path / step(9))
    for number in (1, 2):
        retain(save(tmp_path, number), 1)
    assert names(tmp_path) == [step(2)]
