import json
import os
import signal
from pathlib import Path

import pytest
import torch

from launch.checkpoint import CheckpointError, newest, read


def truncate(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("model.safetensors", truncate, r"model.safetensors has \d+ bytes, the manifest says"),
        ("model.safetensors", flip, r"model.safetensors has other contents"),
        ("optimizer.safetensors", flip, r"optimizer.safetensors has other contents"),
        ("state.json", flip, r"state.json has other contents"),
        ("state.json", Path.unlink, r"state.json: No such file"),
        ("MANIFEST.json", Path.unlink, r"MANIFEST.json: No such file"),
        ("MANIFEST.json", truncate, r"MANIFEST.json is not a checkpoint's manifest"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(
    tmp_path, name, damage, words, save
):
    good = save(tmp_path, 1)
    bad = save(tmp_path, 2)
    damage(bad / name)
    with pytest.raises(CheckpointError, match=words):
        read(bad)
    path, [(skipped, why)] = newest(tmp_path)
    assert (path, skipped) == (good, bad)
    with pytest.raises(CheckpointError, match=words):
        raise CheckpointError(why)


def test_a_later_format_is_refused_with_both_numbers(tmp_path, save):
    path = save(tmp_path, 1)
    manifest = json.loads((path / "MANIFEST.json").read_text())
    (path / "MANIFEST.json").write_text(json.dumps({**manifest, "format": 9}))
    with pytest.raises(CheckpointError, match="has format 9, this version reads 1"):
        read(path)


@pytest.mark.parametrize(
    ("model", "state", "words"),
    [
        ({"x": torch.zeros(2, device="meta")}, {}, "x is a meta, sparse or quantized"),
        ({"x": torch.eye(2).to_sparse()}, {}, "x is a meta, sparse or quantized"),
        ({}, {"made": {1, 2}}, "state.made is a set, and a checkpoint holds tensors"),
        ({}, {"aliases": {}}, "'aliases'.* taken"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path, model, state, words, save):
    with pytest.raises(CheckpointError, match=words):
        save(tmp_path, 1, model, {}, state)
    assert list(tmp_path.iterdir()) == []


def test_D14_killed_in_mid_write_the_last_whole_one_is_found(tmp_path, save, run_child):
    good = save(tmp_path, 1)
    code = """
        import os, signal, sys, threading, time
        from pathlib import Path
        import torch
        from launch.checkpoint import collect, write

        folder = Path(sys.argv[1])

        def kill_when_it_is_being_written():
            while not (folder / ".step-00000002.part" / "model.safetensors").exists():
                pass
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=kill_when_it_is_being_written).start()
        write(folder, collect(2, {"x": torch.zeros(20_000_000)}, {}, {}))
        """
    assert run_child(code, tmp_path).returncode == -signal.SIGKILL
    assert (tmp_path / ".step-00000002.part").is_dir()
    assert newest(tmp_path) == (good, [])
    assert os.readlink(tmp_path / "last") == "step-00000001"
    save(tmp_path, 3)
    assert not (tmp_path / ".step-00000002.part").exists()


def test_D23_a_full_disk_leaves_no_stump_and_the_one_before_it(
    tmp_path, save, files_of, run_child, model, state
):
    save(tmp_path, 1, model, {}, state)
    before = files_of(tmp_path)
    code = """
        import resource, sys
        from pathlib import Path
        import torch
        from launch.checkpoint import CheckpointError, collect, write

        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        large = {"x": torch.zeros(50_000)}
        for full in ((large, {}, {}), ({}, large, {}), ({}, {}, {"x": [0] * 100_000})):
            try:
                write(Path(sys.argv[1]), collect(2, *full))
            except CheckpointError as error:
                print(error)
        """
    child = run_child(code, tmp_path)
    told = child.stdout.splitlines()
    assert len(told) == 3, child.stderr
    for line in told:
        assert line.startswith(f"cannot write checkpoint {tmp_path}/step-00000002: ")
        assert "File too large" in line
        assert line.endswith("the checkpoints before it are untouched")
    assert files_of(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last", "step-00000001"]


def test_a_file_in_the_folders_place_is_told_with_its_path(tmp_path, save):
    (tmp_path / "checkpoints").write_text("mine")
    with pytest.raises(CheckpointError, match=r"checkpoints/step-00000001: File exists"):
        save(tmp_path / "checkpoints", 1)


def test_D21_nothing_is_pickled(tmp_path, save, files_of, run_child, model, state):
    path = save(tmp_path, 1, model, {"0/x": torch.ones(1)}, state)
    code = """
        import pickle, sys, torch
        from pathlib import Path
        from launch.checkpoint import read

        def refuse(*args, **kwargs):
            raise SystemExit("something was unpickled")

        pickle.load = pickle.loads = pickle.Unpickler = torch.load = refuse
        print(sorted(read(Path(sys.argv[1]))[0]))
        """
    assert run_child(code, path).stdout == "['a.bias', 'b.weight']\n"
    for name, data in files_of(path).items():
        assert not data.startswith((b"\x80", b"PK")), name
