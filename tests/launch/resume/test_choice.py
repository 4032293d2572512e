"""Which checkpoint a run goes on from, and which it refuses: told once, before anything is made."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch

from launch.checkpoint import CheckpointError, collect, manifest, write
from launch.config import load as load_config
from launch.resume import Choice, load
from launch.run import run
from parallel import Place


def damage(path):
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)


def files_of(folder):
    return {
        str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_symlink() or p.is_file()
    }


@pytest.fixture
def old(train, left, noisy):
    """A run of 3 steps, and of its checkpoints the paths."""
    words = (*noisy, "checkpoint.every_steps=1", "checkpoint.keep=3", "train.max_steps=3")
    assert train(*words, "name=old").codes == [0]
    return [left("old").folder / f"checkpoints/step-{number:08d}" for number in (1, 2, 3)]


def test_D14_the_newest_is_broken_the_one_before_it_is_taken_and_that_is_said(
    train, left, noisy, old
):
    damage(old[2])
    (old[1] / "state.json").unlink()
    ended = train(*noisy, "name=old", "train.max_steps=4", processes=2)
    assert ended.codes == [0, 0], ended.output
    folder = "runs/old/checkpoints"
    assert f"note: skipped {folder}/step-00000003: model.safetensors has other" in ended.output
    assert f"note: skipped {folder}/step-00000002: state.json: No such file" in ended.output
    assert "going on after step 1" in ended.output
    assert left("old").status["step"] == 4


def test_D14_with_none_whole_the_run_ends_with_one_message_and_writes_nothing(
    train, left, noisy, old
):
    for path in old:
        damage(path)
    before = files_of(left("old").folder)
    ended = train(*noisy, "name=old", "train.max_steps=4")
    assert ended.codes == [2]
    lines = ended.output.splitlines()
    assert lines[0] == "runs/old/checkpoints has 3 checkpoints, and none is whole:"
    assert lines[1].startswith("  step-00000003: model.safetensors has other contents")
    assert lines[-1] == "bring one back from a copy, or train anew: name=old-2"
    assert len(lines) == 5
    assert files_of(left("old").folder) == before


def test_a_state_that_lacks_something_is_refused_in_words(train, left, noisy, old):
    state = json.loads((old[2] / "state.json").read_text())
    del state["early_stop"], state["skipped"]
    (old[2] / "state.json").write_text(json.dumps(state))
    (old[2] / manifest.NAME).write_text(manifest.describe(old[2], 3))
    ended = train(*noisy, "name=old", "train.max_steps=4")
    assert ended.codes == [2]
    assert "the checkpoint's state.json has no 'skipped'" in ended.output.splitlines()[-1]


def test_D17_a_new_run_goes_on_from_another_and_leaves_it_as_it_was(train, left, noisy, old):
    train(*noisy, "name=straight", "train.max_steps=6")
    before = files_of(left("old").folder)
    words = ("train.max_steps=6", "checkpoint.every_steps=1", "checkpoint.resume=runs/old")
    ended = train(*noisy, *words, "name=new", processes=1)
    assert ended.codes == [0], ended.output
    assert f"going on from {old[2]}, as checkpoint.resume says" in ended.output
    assert files_of(left("old").folder) == before
    assert left("new").steps() == [5, 6]
    wanted, met = left("straight").bytes(), left("new").bytes()
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert met[name] == wanted[name]
    again = train(*noisy, *words, "name=new")
    assert "already complete" in again.output


def test_the_newest_of_the_other_run_is_broken_that_is_said(train, left, noisy, old):
    damage(old[2])
    words = ("train.max_steps=4", "checkpoint.resume=runs/old", "name=new")
    ended = train(*noisy, *words)
    assert ended.codes == [0]
    assert f"note: skipped {old[2]}: model.safetensors has other" in ended.output
    assert f"note: going on from {old[1]}" in ended.output


NOWHERE = "no whole checkpoint is there; wanted a run's folder, such as runs/NAME, or one of its"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("runs/nowhere", NOWHERE),
        ("", NOWHERE),
        ("x" * 300, NOWHERE),
        ("circle", NOWHERE),
        ("runs/old/checkpoints/step-00000009", "step-00000009: MANIFEST.json: No such file"),
        ("runs/old/config.yaml", NOWHERE),
        ("runs/old/ranks", NOWHERE),
        ("runs/old/checkpoints/step-00000003", "step-00000003: model.safetensors has other"),
        ("runs/old/checkpoints/last", "step-00000003: model.safetensors has other"),
        ("runs/old/checkpoints/step-00000002", "is of another experiment:"),
        ("runs/old", "is of another experiment:"),
    ],
)
def test_a_path_to_resume_from_is_refused_with_what_is_there(
    train, left, noisy, request, tmp_path, given, words
):
    source = request.getfixturevalue("old_once")
    shutil.copytree(source, tmp_path / "runs/old", symlinks=True)
    damage(tmp_path / "runs/old/checkpoints/step-00000003")
    (tmp_path / "circle").symlink_to("circle")
    more = ("seed=3", "name=new", f"checkpoint.resume={given}")
    ended = train(*noisy, *more)
    assert ended.codes[0] == 2, ended.output
    assert ended.outputs[0].startswith(f"checkpoint.resume={given}")
    assert words in ended.outputs[0]
    assert "Traceback" not in ended.output
    assert not (tmp_path / "runs/new").exists()
    if "another" in words:
        assert "  seed: 0 there, 3 here" in ended.output
        assert ended.output.endswith(f"checkpoint.init_from={given}\n")


@pytest.fixture(scope="session")
def old_once(tmp_path_factory):
    """The same, made once."""
    runs = tmp_path_factory.mktemp("old")
    words = ["task._target_=tests.tasks.Probe", "train.max_steps=3", "checkpoint.every_steps=1"]
    words += ["train.global_batch_size=8", "checkpoint.keep=3", "log.progress=none"]
    here = os.getcwd()
    os.chdir(runs)
    try:
        assert run(load_config([], [*words, "name=old"]), Place()) == 0
    finally:
        os.chdir(here)
    return runs / "runs/old"


def test_D13_other_numbers_of_processes_go_on_with_the_same_batches(train, left, noisy, tmp_path):
    def batches(ranks):
        files = [tmp_path / f"batches-{rank}.txt" for rank in range(ranks)]
        rows = [file.read_text().splitlines() for file in files]
        for file in files:
            file.unlink()
        return [sorted(" ".join(row).split(), key=int) for row in zip(*rows, strict=True)]

    train(*noisy, "train.max_steps=9", "name=straight")
    wanted = batches(1)
    assert train(*noisy, "train.max_steps=4", "name=saved", processes=2).codes == [0, 0]
    assert batches(2) == wanted[:4]
    for processes in (1, 3):
        name = f"by-{processes}"
        shutil.copytree(left("saved").folder, left(name).folder, symlinks=True)
        ended = train(*noisy, "train.max_steps=9", f"name={name}", processes=processes)
        assert ended.codes == [0] * processes, ended.output
        assert f"note: saved by 2 processes, going on with {processes}: " in ended.output
        assert "dropout and other noise of each replica begin anew" in ended.output
        assert batches(processes) == wanted[4:]


def _load_what_each_rank_sees(world, folder, words):
    path = folder / f"rank-{world.rank}" / "step-00000001"
    text = (folder / "rank-0/step-00000001/MANIFEST.json").read_text()
    with pytest.raises(CheckpointError, match=words) as told:
        load(Choice(path, text), world)
    assert str(told.value).startswith("rank 1: ")


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (None, "cannot see the checkpoint .*rank-1/step-00000001: No such file"),
        (2.0, "step-00000001 is another checkpoint here than on rank 0"),
    ],
)
def test_D20_a_rank_that_sees_another_checkpoint_is_named_on_all(in_ranks, tmp_path, seen, words):
    write(tmp_path / "rank-0", collect(1, {"x": torch.ones(2)}, {}, {"best": None}))
    if seen is not None:
        write(tmp_path / "rank-1", collect(1, {"x": torch.full((2,), seen)}, {}, {"best": None}))
    in_ranks(2, _load_what_each_rank_sees, tmp_path, words)


def test_a_file_in_the_place_of_the_checkpoints_is_told(train, left, noisy, old):
    shutil.rmtree(old[0].parent)
    old[0].parent.write_text("mine")
    ended = train(*noisy, "name=old", "train.max_steps=4")
    assert ended.codes == [2]
    assert "cannot look for checkpoints in runs/old/checkpoints: Not a directory" in ended.output


def test_a_copy_without_links_goes_on(train, left, noisy, old):
    shutil.copytree(left("old").folder, left("copy").folder)  # follows links, as cp -rL does
    words = (*noisy, "name=copy", "train.max_steps=4", "checkpoint.best={metric: valid/loss}")
    ended = train(*words, processes=2)
    assert ended.codes == [0, 0], ended.output
    folder = left("copy").folder / "checkpoints"
    assert [os.readlink(folder / name) for name in ("last", "best")] == ["step-00000004"] * 2


def test_a_folder_in_a_links_place_is_refused_before_the_first_step(train, left, noisy, old):
    last = left("old").folder / "checkpoints/last"
    last.unlink()
    (last / "mine").mkdir(parents=True)
    ended = train(*noisy, "name=old", "train.max_steps=4")
    assert ended.codes == [2]
    assert ended.output.startswith("runs/old/checkpoints/last is in the way: wanted a link")
    assert ended.output.count("\n") == 1


def test_a_run_is_complete_only_while_its_last_checkpoint_is_there(train, left, noisy, old):
    words = (*noisy, "name=old", "train.max_steps=3", "checkpoint.every_steps=1")
    assert "already complete" in train(*words).output
    wanted = left("old").bytes()
    shutil.rmtree(old[2])
    ended = train(*words)
    assert ended.codes == [0], ended.output
    assert "going on after step 2" in ended.output
    assert left("old").bytes() == wanted
    os.truncate(old[2] / "optimizer.safetensors", 100)
    ended = train(*words)
    assert "note: skipped runs/old/checkpoints/step-00000003: optimizer.safetensors has 100" in (
        ended.output
    )
    assert left("old").bytes() == wanted
    assert "already complete" in train(*words).output


@pytest.mark.parametrize("more", [(), ("checkpoint.resume=runs/copy",)])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(train, left, noisy, old, more):
    shutil.copytree(left("old").folder, left("copy").folder, symlinks=True)
    shutil.rmtree(left("old").folder / "checkpoints")
    before = files_of(left("old").folder)
    words = (*noisy, "name=old", "train.max_steps=4")
    ended = train(*words, *more, processes=2)
    assert ended.codes == [2, 2]
    assert ended.output == (
        "runs/old/metrics.jsonl tells of checkpoints, the last of step 3, and "
        "runs/old/checkpoints has none: bring them back, from a copy or by mounting their disk, "
        "and give the same command again; or train anew: name=old-2\n"
    )
    assert files_of(left("old").folder).keys() == before.keys()
    shutil.copytree(left("copy").folder / "checkpoints", left("old").folder / "checkpoints")
    assert "going on after step 3" in train(*words).output


def test_a_run_that_never_saved_begins_at_its_beginning(train, left, noisy):
    words = (*noisy, "name=again", "train.max_steps=4", "fault.kind=raise", "fault.step=3")
    assert train(*words).codes == [1]
    assert left("again").lines("step")
    ended = train(*words)
    assert ended.codes == [0], ended.output
    assert "no checkpoint was written here before: training begins at its beginning" in ended.output
