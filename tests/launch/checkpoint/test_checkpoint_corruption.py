"""Two hundred ways to spoil the newest checkpoint of a real run, in one part or in three: it is
seen, and the last good one is taken.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from launch.checkpoint import CheckpointError, manifest, newest, read
from launch.config import load
from launch.run import run
from parallel import Place
from tests.split import save_parts


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> dict[str, Path]:
    """The checkpoints of a run of the digits: steps 1, 2 and 3, as one process and three do it."""
    runs = tmp_path_factory.mktemp("runs")
    words = ["task.width=2", "train.max_steps=3", "checkpoint.every_steps=1", "checkpoint.keep=3"]
    words += ["log.progress=none", "task.held_out=1400", f"runs={runs}"]
    with torch.random.fork_rng():
        assert run(load([], words), Place()) == 0
    whole, split = runs / "digits/checkpoints", runs / "split"
    for number in (1, 2, 3):
        *tensors, state = read(whole / step(number))
        parts = [[dict(list(kind.items())[rank::3]) for kind in tensors] for rank in range(3)]
        save_parts(split, number, parts, state)
    return {"whole": whole, "split": split}


@pytest.fixture
def form():
    return "whole"


@pytest.fixture
def folder(trained, form, tmp_path):
    """The same, to be spoilt."""
    return Path(shutil.copytree(trained[form], tmp_path / "checkpoints", symlinks=True))


def step(number: int) -> str:
    return f"step-{number:08d}"


def files(path: Path, ending: str = "") -> list[str]:
    return sorted(file.name for file in path.iterdir() if file.name.endswith(ending))


def seal(path: Path) -> None:
    """Let the manifest say what the files are now: what is wrong is then in them."""
    (path / manifest.NAME).write_text(manifest.describe(path, 3))


def truncated(path, draw):
    file = path / draw.choice(files(path))
    os.truncate(file, draw.randrange(file.stat().st_size))


def flipped(path, draw):
    file = path / draw.choice(files(path))
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def longer(path, draw):
    with (path / draw.choice(files(path))).open("ab") as file:
        file.write(draw.randbytes(draw.randrange(1, 5000)))


def zeroed(path, draw):
    """As after a crash of a machine that had not written all of its memory."""
    file = path / draw.choice(files(path))
    size = file.stat().st_size
    at = draw.randrange(size)
    length = min(size - at, 4096)
    data = file.read_bytes()
    file.write_bytes(data[:at] + b"\0" * length + data[at + length :])
    if file.read_bytes() == data:
        truncated(path, draw)


def missing(path, draw):
    (path / draw.choice(files(path))).unlink()


def emptied(path, draw):
    for name in files(path):
        (path / name).unlink()


def swapped(path, draw):
    one, two = (path / name for name in draw.sample(files(path), k=2))
    held = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(held)


def of_another_step(path, draw):
    other = path.with_name(step(2))
    unlike = [n for n in files(path) if (other / n).read_bytes() != (path / n).read_bytes()]
    name = draw.choice(unlike)  # an index is the same in all
    shutil.copy(other / name, path / name)


def all_of_another_step(path, draw):
    shutil.rmtree(path)
    shutil.copytree(path.with_name(step(draw.randrange(1, 3))), path)


def a_file_in_its_place(path, draw):
    shutil.rmtree(path)
    path.write_bytes(draw.randbytes(draw.randrange(100)))


def a_link_to_itself(path, draw):
    file = path / draw.choice(files(path))
    file.unlink()
    file.symlink_to(file.name)


def the_folder_a_link_to_itself(path, draw):
    shutil.rmtree(path)
    path.symlink_to(path.name)


def a_folder_in_a_files_place(path, draw):
    file = path / draw.choice(files(path))
    file.unlink()
    file.mkdir()


def state_of_another_kind(path, draw):
    kinds = ("[]", "3", "null", '"text"', "{}", '{"step": 3}', '{"aliases": 1, "complex": []}')
    (path / "state.json").write_text(draw.choice(kinds))
    seal(path)


def state_that_is_odd(path, draw):
    state = json.loads((path / "state.json").read_text())
    odd = {
        "aliases": {"model": {"x": "of nothing"}, "optimizer": {}},
        "complex": {"model": sorted(state["built"]), "optimizer": []},
        "metrics": {"$float": 10**400},
        "generators": {"$bytes": "!"},
        "task_state": {"$items": [[{}, {}]]},
    }
    key = draw.choice(sorted(odd))
    (path / "state.json").write_text(json.dumps({**state, key: odd[key]}))
    seal(path)


def deep(path, draw):
    depth = draw.choice((2_000, 200_000))
    pair = draw.choice(("[]", ('{"a":', "}")))
    text = pair[0] * depth + "1" * (pair != "[]") + pair[1] * depth
    name = draw.choice(("state.json", manifest.NAME))
    (path / name).write_text(text)
    if name == "state.json":
        seal(path)


def a_header_of_a_wrong_length(path, draw):
    file = path / draw.choice(files(path, ".safetensors"))
    data = file.read_bytes()
    length = draw.choice((2**63, 2**64 - 1, 10**9, 0, 1, len(data)))
    file.write_bytes(length.to_bytes(8, "little") + data[8:])
    seal(path)


def a_header_that_says_something_else(path, draw):
    file = path / draw.choice(files(path, ".safetensors"))
    entry = {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}
    header = draw.choice((b"{}", b"[" * 9000, b"\xff" * 64, json.dumps({"a": entry}).encode()))
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    seal(path)


def a_manifest_of_another_kind(path, draw):
    text = (path / manifest.NAME).read_text()
    whole = json.loads(text)
    kinds = [[], None, 1, {}, {**whole, "files": []}, {**whole, "files": {}}, {**whole, "step": 2}]
    kinds += [{**whole, "format": draw.choice((2, "1", None, [], 10**300))}]
    kinds += [{**whole, "files": dict.fromkeys(whole["files"])}]
    (path / manifest.NAME).write_text(json.dumps(draw.choice(kinds)))


def an_index_of_another_kind(path, draw):
    file = path / draw.choice(files(path, ".index.json"))
    whole = json.loads(file.read_text())
    places = whole["weight_map"]
    name = draw.choice(sorted(places))
    less = {other: place for other, place in places.items() if other != name}
    kinds = [[], None, {}, {"weight_map": []}, {"weight_map": less}]
    kinds += [{"weight_map": {**places, "more": places[name]}}]
    kinds += [{"weight_map": {**less, name: f"../{places[name]}"}}]
    kinds += [{"weight_map": {**less, name: next(p for p in places.values() if p != places[name])}}]
    file.write_text(json.dumps(draw.choice(kinds)))
    seal(path)


def a_shard_that_nobody_lists(path, draw):
    (path / draw.choice(files(path, ".safetensors"))).unlink()
    seal(path)


def an_index_that_nobody_lists(path, draw):
    (path / draw.choice(files(path, ".index.json"))).unlink()
    seal(path)


def shards_of_another_count(path, draw):
    file = path / draw.choice(files(path, "-of-00003.safetensors"))
    file.rename(file.with_name(file.name.replace("of-00003", f"of-{draw.choice((2, 4)):05d}")))
    seal(path)


SPLIT_WAYS = (
    *(an_index_of_another_kind,) * 3, a_shard_that_nobody_lists, an_index_that_nobody_lists,
    shards_of_another_count,
)  # fmt: skip
WAYS = (
    *(truncated,) * 2, *(flipped,) * 3, longer, zeroed, missing, emptied, swapped, of_another_step,
    all_of_another_step, a_file_in_its_place, a_link_to_itself, the_folder_a_link_to_itself,
    a_folder_in_a_files_place, state_of_another_kind, state_that_is_odd, deep,
    a_header_of_a_wrong_length, a_header_that_says_something_else, a_manifest_of_another_kind,
)  # fmt: skip


@pytest.mark.parametrize(
    ("form", "way"),
    [("whole", way) for way in dict.fromkeys(WAYS)]
    + [("split", way) for way in dict.fromkeys((*WAYS, *SPLIT_WAYS))],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_D14_spoilt_in_any_way_the_newest_is_seen_and_the_one_before_it_taken(folder, form, way):
    draw, path = random.Random(way.__name__), folder / step(3)
    kept = folder.parent / "kept"
    shutil.copytree(path, kept)
    ways = WAYS if form == "whole" else (*WAYS, *SPLIT_WAYS)
    times = -(-200 * ways.count(way) // len(ways))
    for _ in range(times):
        way(path, draw)
        found, skipped = newest(folder)
        assert found == folder / step(2)
        [(bad, why)] = skipped
        assert bad == path
        assert 0 < len(why) < 400
        with pytest.raises(CheckpointError) as told:
            read(path)
        assert str(told.value).startswith(f"checkpoint {path} cannot be ")
        (path.unlink if path.is_symlink() or path.is_file() else lambda: shutil.rmtree(path))()
        shutil.copytree(kept, path)
    assert newest(folder) == (path, [])


def test_a_checkpoint_under_the_name_of_another_step_is_not_taken_for_it(folder):
    (folder / step(3)).rename(folder / step(7))
    assert newest(folder) == (folder / step(2), [(folder / step(7), "MANIFEST.json is of step 3")])


def test_with_none_whole_nothing_is_found_and_each_is_named(folder):
    for number in (1, 2, 3):
        (folder / step(number) / manifest.NAME).unlink()
    found, skipped = newest(folder)
    assert found is None
    assert [path.name for path, _ in skipped] == [step(3), step(2), step(1)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_skipped(folder):
    (folder / step(3) / "model.safetensors").chmod(0)
    found, [(_, why)] = newest(folder)
    assert found == folder / step(2)
    assert why == "model.safetensors: Permission denied"


def test_what_is_no_checkpoint_of_ours_is_not_looked_at(folder):
    for name in ("step-00000009.old", "step-9", "step-00000009x", "mine-step-00000009", "notes"):
        shutil.copytree(folder / step(3), folder / name)
    assert newest(folder) == (folder / step(3), [])
