"""What would run code if it were unpickled is refused, and nothing of it runs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from launch.checkpoint import CheckpointError, manifest, newest, read, read_state

MARK = "it-ran.txt"


class Payload:
    """Makes a file when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path(MARK),)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def pickled(path):
    path.write_bytes(pickle.dumps(Payload()))


def torch_file(path):
    torch.save({"weight": torch.ones(2), "x": Payload()}, path)


def old_torch_file(path):
    torch.save(Payload(), path, _use_new_zipfile_serialization=False)


def python_yaml(path):
    path.write_text(f"!!python/object/apply:os.mknod ['{MARK}']\n")


def test_the_payload_would_run():
    pickle.loads(pickle.dumps(Payload()))
    assert Path(MARK).exists()


@pytest.mark.parametrize("make", [pickled, torch_file, old_torch_file, python_yaml])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "state.json", manifest.NAME]
)
def test_code_in_a_files_place_is_refused_and_does_not_run(tmp_path, save, make, name):
    good, bad = save(tmp_path / "checkpoints", 1), save(tmp_path / "checkpoints", 2)
    make(bad / name)
    if name != manifest.NAME:  # whoever can write the one can write the other
        (bad / manifest.NAME).write_text(manifest.describe(bad, 2))
    with pytest.raises(CheckpointError, match=r"step-00000002 cannot be (used|read): "):
        read(bad)
    if name == "state.json":
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_state(bad)
    assert newest(tmp_path / "checkpoints")[0] == good
    assert not Path(MARK).exists()


def test_code_in_a_states_values_stays_what_it_is(tmp_path, save):
    held = {"data": pickle.dumps(Payload()), "text": f"!!python/object/apply:os.mknod ['{MARK}']"}
    assert read(save(tmp_path / "checkpoints", 1, state=held))[2] == held
    assert not Path(MARK).exists()


@pytest.mark.parametrize("tag", ["object/apply:os.mknod", "object/new:os.mknod", "name:os.mknod"])
def test_code_in_a_configuration_is_refused_and_does_not_run(train, tmp_path, tag):
    (tmp_path / "mine.yaml").write_text(f"name: !!python/{tag} ['{MARK}']\n")
    ended = train("mine.yaml")
    assert ended.codes == [2], ended.output
    assert "mine.yaml" in ended.output
    assert "Traceback" not in ended.output
    assert not Path(MARK).exists()


def test_code_in_a_run_folders_configuration_is_refused_and_does_not_run(train, tmp_path):
    words = ("task._target_=tests.tasks.Probe", "train.max_steps=1", "name=again")
    words = (*words, "train.global_batch_size=8", "log.progress=none")
    assert train(*words).codes == [0]
    text = f"name: !!python/object/apply:os.mknod ['{MARK}']\n"
    (tmp_path / "runs/again/config.yaml").write_text(text)
    ended = train(*words)
    assert ended.codes == [2], ended.output
    assert "cannot read runs/again/config.yaml" in ended.output
    assert not Path(MARK).exists()
