import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from launch.checkpoint import CheckpointError, newest, read, write

STATE = {"epoch": 3, "samples": 77, "groups": [[{"lr": 1e-3, "betas": [0.9, 0.999]}]]}


def some_model():
    torch.manual_seed(0)
    return {"b.weight": torch.randn(4, 3), "a.bias": torch.randn(3, dtype=torch.float64)}


def files_of(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not p.is_symlink()
    }


def run_child(code, *args):
    """Run ``code`` in a process of its own; tests of kill and of limits end it."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    root = Path(__file__).parents[3]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=root)


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
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(tmp_path, name, damage, words):
    good = write(tmp_path, 1, some_model(), {}, {})
    bad = write(tmp_path, 2, some_model(), {}, {})
    damage(bad / name)
    with pytest.raises(CheckpointError, match=words):
        read(bad)
    path, [(skipped, why)] = newest(tmp_path)
    assert (path, skipped) == (good, bad)
    with pytest.raises(CheckpointError, match=words):
        raise CheckpointError(why)


def test_a_later_format_is_refused_with_both_numbers(tmp_path):
    path = write(tmp_path, 1, some_model(), {}, {})
    manifest = json.loads((path / "MANIFEST.json").read_text())
    (path / "MANIFEST.json").write_text(json.dumps({**manifest, "format": 9}))
    with pytest.raises(CheckpointError, match="has format 9, this version reads 1"):
        read(path)


@pytest.mark.parametrize(
    ("model", "state", "words"),
    [
        ({"x": torch.zeros(2, device="meta")}, {}, "x is a meta, sparse or quantized"),
        ({"x": torch.eye(2).to_sparse()}, {}, "x is a meta, sparse or quantized"),
        ({}, {"made": {1, 2}}, "set is not JSON serializable"),
        ({}, {"aliases": {}}, "'aliases'.* taken"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path, model, state, words):
    with pytest.raises(CheckpointError, match=words):
        write(tmp_path, 1, model, {}, state)
    assert list(tmp_path.iterdir()) == []


def test_D14_killed_in_mid_write_the_last_whole_one_is_found(tmp_path):
    good = write(tmp_path, 1, some_model(), {}, {})
    code = """
        import os, signal, sys, threading, time
        from pathlib import Path
        import torch
        from launch.checkpoint import write

        folder = Path(sys.argv[1])

        def kill_when_it_is_being_written():
            while not (folder / ".step-00000002.part" / "model.safetensors").exists():
                pass
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=kill_when_it_is_being_written).start()
        write(folder, 2, {"x": torch.zeros(20_000_000)}, {}, {})
        """
    assert run_child(code, tmp_path).returncode == -signal.SIGKILL
    assert (tmp_path / ".step-00000002.part").is_dir()
    assert newest(tmp_path) == (good, [])
    assert os.readlink(tmp_path / "last") == "step-00000001"
    write(tmp_path, 3, some_model(), {}, {})
    assert not (tmp_path / ".step-00000002.part").exists()


def test_D23_a_full_disk_leaves_no_stump_and_the_one_before_it(tmp_path):
    write(tmp_path, 1, some_model(), {}, STATE)
    before = files_of(tmp_path)
    code = """
        import resource, sys
        from pathlib import Path
        import torch
        from launch.checkpoint import CheckpointError, write

        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        large = {"x": torch.zeros(50_000)}
        for full in ((large, {}, {}), ({}, large, {}), ({}, {}, {"x": [0] * 100_000})):
            try:
                write(Path(sys.argv[1]), 2, *full)
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


def test_a_file_in_the_folders_place_is_told_with_its_path(tmp_path):
    (tmp_path / "checkpoints").write_text("mine")
    with pytest.raises(CheckpointError, match=r"checkpoints/step-00000001: File exists"):
        write(tmp_path / "checkpoints", 1, some_model(), {}, {})


def test_D21_nothing_is_pickled(tmp_path):
    path = write(tmp_path, 1, some_model(), {"0/x": torch.ones(1)}, STATE)
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
