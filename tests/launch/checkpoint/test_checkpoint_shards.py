"""Checkpoints in parts: what they hold comes back, whoever wrote it, and none is lost or mixed."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch
from safetensors.torch import save_file

from launch.checkpoint import ContentsError, Order, Writer, newest, read
from launch.checkpoint.together import LEAVING_S
from tests.split import save_parts


def test_the_parts_come_back_as_one_whatever_they_hold(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tied = torch.randn(3, 2, generator=generator)
    pair = torch.randn(3, dtype=torch.complex64, generator=generator)
    parts = [
        ({"b": tied, "tied.b": tied, "z": pair}, {"0/b/step": torch.tensor(1.0)}),
        ({}, {}),
        ({"a": pair.conj(), "tied.c": tied.clone(), "none": torch.zeros(0, 4)}, {"0/a/m": pair}),
    ]
    path = save_parts(tmp_path, 7, parts, {"n": [1]})
    model, optimizer, state = read(path)
    assert model.keys() == {"a", "b", "none", "tied.b", "tied.c", "z"}
    assert model["tied.b"] is model["b"]
    assert all(model[name].equal(tied) for name in ("b", "tied.b", "tied.c"))
    assert model["a"].equal(pair.conj().resolve_conj())
    assert model["z"].equal(pair)
    assert model["none"].shape == (0, 4)
    assert optimizer["0/a/m"].equal(pair)
    assert state == {"n": [1]}
    assert "model-00002-of-00002.safetensors" in {file.name for file in path.iterdir()}
    assert newest(tmp_path) == (path, [])


def test_a_tensor_of_two_ranks_is_refused(tmp_path):
    part = ({"a": torch.zeros(2)}, {})
    with pytest.raises(ContentsError, match="a is in the shards of two ranks"):
        save_parts(tmp_path, 1, [part, part])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="no list of what a process has mapped")
def test_shards_are_mapped_and_not_copied_when_they_are_read(tmp_path):
    parts = [({name: torch.ones(1000)}, {name: torch.ones(1000)}) for name in "ab"]
    held = read(save_parts(tmp_path, 1, parts))
    mapped = Path("/proc/self/maps").read_text()
    for kind in ("model", "optimizer"):
        for number in (1, 2):
            assert f"{tmp_path}/step-00000001/{kind}-0000{number}-of-00002.safetensors" in mapped
    assert held[0].keys() == {"a", "b"}


def test_a_checkpoint_of_before_there_were_shards_is_read(tmp_path):
    path, files = tmp_path / "step-00000005", {}
    path.mkdir()
    save_file({"x": torch.arange(3.0)}, path / "model.safetensors", metadata={"format": "pt"})
    save_file({"0/x/m": torch.ones(3)}, path / "optimizer.safetensors")
    notes = {"aliases": {"model": {"y": "x"}, "optimizer": {}}}
    notes["complex"] = {"model": [], "optimizer": []}
    (path / "state.json").write_text(json.dumps({"n": 5, **notes}))
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        data = (path / name).read_bytes()
        files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "MANIFEST.json").write_text(json.dumps({"format": 1, "step": 5, "files": files}))
    assert newest(tmp_path) == (path, [])
    model, optimizer, state = read(path)
    assert model["y"].equal(torch.arange(3.0))
    assert optimizer["0/x/m"].equal(torch.ones(3))
    assert state == {"n": 5}


def start(world, folder, asynchronous=True, timeout_s=30.0):
    writer = Writer(folder, keep=1, asynchronous=asynchronous)
    writer.split_over(world, timeout_s)
    return writer


def write(writer, world, step, value):
    writer.begin(step)
    world.barrier()
    part = {f"of {world.rank}": torch.full((1000,), float(value + world.rank))}
    writer.write(Order(step, 0, part, {}, {"value": value} if world.is_main else {}))


def written_again(world, folder, asynchronous):
    writer = start(world, folder, asynchronous)
    for value in (10, 20, 30):
        write(writer, world, 4, value)
    writer.close()
    steps = [(each.step, each.error) for each in writer.finished()]
    assert steps == ([(4, None)] * 3 if world.is_main else []), "rank 0 alone tells"
    world.barrier()
    model, _, state = read(newest(folder)[0])
    assert state == {"value": 30}
    assert {name: float(tensor[0]) for name, tensor in model.items()} == {
        f"of {rank}": 30.0 + rank for rank in range(world.size)
    }


@pytest.mark.parametrize("asynchronous", [False, True])
def test_written_again_under_the_same_step_the_parts_are_of_one_time(
    in_ranks, tmp_path, asynchronous
):
    in_ranks(3, written_again, tmp_path, asynchronous)


def many(world, folder):
    writer, keys = start(world, folder), []
    for step in range(1, 6):
        write(writer, world, step, step)
        writer.wait()
        world.barrier()
        keys.append(world.store.num_keys())
    writer.close()
    assert keys[1:] == keys[:1] * 4
    assert [path.name for path in folder.glob("step-*")] == ["step-00000005"]


def test_the_store_does_not_grow_with_the_checkpoints(in_ranks, tmp_path):
    in_ranks(2, many, tmp_path)


def one_stays_away(world, folder, is_leaving):
    writer = start(world, folder, timeout_s=600 if is_leaving else 0.5)
    write(writer, world, 1, 1)
    writer.wait()
    writer.begin(2)
    before = monotonic()
    if world.is_main:
        writer.write(Order(2, 0, {"x": torch.zeros(3)}, {}, {}))
        told = writer.finished()
        while not is_leaving and len(told) < 2:
            sleep(0.01)
            told += writer.finished()
        writer.leave()
        first, second = told + writer.finished()
        assert (first.step, first.error) == (1, None)
        assert "rank 1: its shard did not come within" in str(second.error)
        assert monotonic() - before < (LEAVING_S + 3 if is_leaving else 5)
        assert newest(folder)[0].name == "step-00000001"
        assert [path for path in folder.iterdir() if path.name.startswith(".")] == []
    else:
        writer.leave()
    world.barrier()


@pytest.mark.slow
@pytest.mark.parametrize("is_leaving", [True, False], ids=["on the way out", "in time"])
def test_rank_0_does_not_wait_for_ever_for_a_shard_that_does_not_come(
    in_ranks, tmp_path, is_leaving
):
    in_ranks(2, one_stays_away, tmp_path, is_leaving)


def each_its_own_folder(world, folder):
    own = folder / str(world.rank)
    own.mkdir()
    writer = start(world, own / "checkpoints", asynchronous=False)
    write(writer, world, 1, 1)
    if world.is_main:
        [told] = writer.finished()
        assert "step-00000001: rank 1: does not see the folder that rank 0" in str(told.error)
        assert list((own / "checkpoints").iterdir()) == []


def test_ranks_that_do_not_share_a_folder_are_told_so(in_ranks, tmp_path):
    in_ranks(2, each_its_own_folder, tmp_path)
