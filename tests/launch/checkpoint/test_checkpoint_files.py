import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from launch.checkpoint import CheckpointError, link, newest, read, write
from launch.checkpoint.files import _put

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


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.randn(2, 3, dtype=torch.float64),
        torch.randn(5).to(torch.bfloat16),
        torch.randn(5).to(torch.float16),
        torch.arange(6).reshape(2, 3),
        torch.tensor(7, dtype=torch.int32),
        torch.tensor([True, False]),
        torch.arange(4, dtype=torch.uint8),
        torch.randn(2, 3, dtype=torch.complex64),
        torch.tensor(1 + 2j, dtype=torch.complex128),
        torch.randn(3, 3, dtype=torch.complex64).conj().t(),
        torch.zeros(0, 4),
        torch.randn(4, 5).t(),
        torch.randn(1, 3).expand(4, 3),
        torch.tensor([float("nan"), float("inf")]),
        torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
    ],
    ids=lambda t: f"{str(t.dtype)[6:]}-{tuple(t.shape)}",
)
def test_a_tensor_comes_back_as_it_was(tmp_path, tensor):
    path = write(tmp_path, 1, {"x": tensor}, {}, {})
    model, optimizer, state = read(path)
    assert model["x"].dtype == tensor.dtype
    assert model["x"].shape == tensor.shape
    torch.testing.assert_close(model["x"], tensor.resolve_conj(), rtol=0, atol=0, equal_nan=True)
    assert (optimizer, state) == ({}, {})


def test_state_comes_back_and_names_are_the_models_own(tmp_path):
    optimizer = {"0/b.weight/exp_avg": torch.ones(4, 3), "0/b.weight/step": torch.tensor(3.0)}
    path = write(tmp_path, 120, some_model(), optimizer, STATE)
    assert path == tmp_path / "step-00000120"
    assert sorted(load_file(path / "model.safetensors")) == ["a.bias", "b.weight"]
    model, moments, state = read(path)
    assert state == STATE
    assert sorted(moments) == sorted(optimizer)
    assert torch.equal(model["b.weight"], some_model()["b.weight"])


def test_what_was_read_may_be_changed_without_changing_the_file(tmp_path):
    path = write(tmp_path, 1, some_model(), {}, {})
    read(path)[0]["b.weight"].zero_()
    assert torch.equal(read(path)[0]["b.weight"], some_model()["b.weight"])


def test_a_tied_tensor_is_saved_once_and_tied_again(tmp_path):
    embedding, head = nn.Embedding(100, 64), nn.Linear(64, 100, bias=False)
    head.weight = embedding.weight
    model = {"head.weight": head.weight, "embedding.weight": embedding.weight}
    path = write(tmp_path, 1, model, {}, {})
    assert (path / "model.safetensors").stat().st_size < 100 * 64 * 4 + 500
    notes = json.loads((path / "state.json").read_text())
    assert notes["aliases"]["model"] == {"head.weight": "embedding.weight"}
    back = read(path)[0]
    assert back["head.weight"] is back["embedding.weight"]
    assert torch.equal(back["head.weight"], embedding.weight)


def test_parts_of_one_storage_are_saved_apart(tmp_path):
    whole = torch.arange(12.0)
    model = {
        "all": whole,
        "first": whole[:6],
        "grid": whole.view(3, 4),
        "turned": whole.view(3, 4).t(),
    }
    path = write(tmp_path, 1, model, {}, {})
    assert json.loads((path / "state.json").read_text())["aliases"]["model"] == {}
    back = read(path)[0]
    for name, tensor in model.items():
        assert torch.equal(back[name], tensor), name
    back["first"].zero_()
    assert torch.equal(back["all"], whole)


def test_empty_tensors_are_never_tied(tmp_path):
    back = read(write(tmp_path, 1, {"a": torch.zeros(0), "b": torch.zeros(0)}, {}, {}))[0]
    assert back["a"] is not back["b"]


def test_equal_tensors_give_equal_bytes_whatever_order_time_and_folder(tmp_path):
    model = some_model()
    write(tmp_path / "one", 5, model, {"0/x": torch.ones(2)}, STATE)
    turned = {name: model[name].clone() for name in reversed(model)}
    write(tmp_path / "two", 5, turned, {"0/x": torch.ones(2)}, dict(reversed(STATE.items())))
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_last_is_a_relative_link_to_the_newest(tmp_path):
    write(tmp_path, 1, some_model(), {}, {})
    write(tmp_path, 2, some_model(), {}, {})
    assert os.readlink(tmp_path / "last") == "step-00000002"
    link(tmp_path, "best", tmp_path / "step-00000001")
    assert os.readlink(tmp_path / "best") == "step-00000001"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "best", "last", "step-00000001", "step-00000002",
    ]  # fmt: skip


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    write(tmp_path, 3, {"x": torch.zeros(2)}, {}, {"try": 1})
    path = write(tmp_path, 3, {"x": torch.ones(2)}, {}, {"try": 2})
    model, _, state = read(path)
    assert torch.equal(model["x"], torch.ones(2))
    assert state == {"try": 2}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last", "step-00000003"]


def test_killed_while_replacing_the_old_one_is_still_found(tmp_path):
    path = write(tmp_path, 3, {"x": torch.zeros(2)}, {}, {})
    with pytest.raises(FileNotFoundError):
        _put(tmp_path / ".gone.part", path)  # the moment between the two renames
    found, skipped = newest(tmp_path)
    assert found is not None
    assert read(found)[0]["x"].tolist() == [0, 0]
    assert skipped == []
    write(tmp_path, 3, {"x": torch.ones(2)}, {}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last", "step-00000003"]


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


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert newest(tmp_path / "absent") == (None, [])
    (tmp_path / "step-00000007").mkdir()
    assert newest(tmp_path)[0] is None
    assert newest(tmp_path)[1][0][1] == "MANIFEST.json: No such file or directory"


def test_steps_are_ordered_as_numbers(tmp_path):
    write(tmp_path, 99_999_999, some_model(), {}, {})
    last = write(tmp_path, 100_000_000, some_model(), {}, {})
    assert newest(tmp_path)[0] == last


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


def test_d14_killed_in_mid_write_the_last_whole_one_is_found(tmp_path):
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


def test_d23_a_full_disk_leaves_no_stump_and_the_one_before_it(tmp_path):
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


def test_d21_nothing_is_pickled(tmp_path):
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
