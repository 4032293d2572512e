"""Every kind of file that holds weights is read; what is none is named in one message."""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from launch.checkpoint import collect, link, write
from launch.weights import WeightsError, read


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    assert all(found[name].equal(value) for name, value in wanted.items())


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.bin", "a.ckpt", "A.PT"])
@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_torch_save_are_read(tmp_path, weights, name, zipped):
    torch.save(weights, tmp_path / name, _use_new_zipfile_serialization=zipped)
    assert_equal(read(tmp_path / name), weights)


def test_files_of_another_pickle_protocol_are_read_without_a_warning(tmp_path, weights):
    torch.save(weights, tmp_path / "a.pt", pickle_protocol=3)
    assert_equal(read(tmp_path / "a.pt"), weights)


@pytest.mark.parametrize(
    "path",
    [
        "state_dict",
        "model",
        "net",
        "model_state_dict",
        "module",
        "model.state_dict",
        "net.module.model",
    ],
)
def test_weights_are_found_inside_what_a_script_saved(tmp_path, weights, path):
    found = OrderedDict(weights)
    for key in reversed(path.split(".")):
        # a tensor beside them, and settings under a name that weights may have
        found = {"epoch": 3, "best": torch.ones(()), "optimizer": {"state": {}}, key: found}
    torch.save({"net": {"width": 3}, **found} if path != "net" else found, tmp_path / "a.pt")
    if path.startswith("net."):
        torch.save(found, tmp_path / "a.pt")
    assert_equal(read(tmp_path / "a.pt"), weights)


def test_one_mapping_under_two_keys_or_within_itself_is_read_once(tmp_path, weights):
    found = {"model": weights, "state_dict": weights}
    found["net"] = found
    torch.save(found, tmp_path / "a.pt")
    assert_equal(read(tmp_path / "a.pt"), weights)


def test_parameters_come_as_plain_tensors(tmp_path):
    torch.save(dict(nn.Linear(2, 2).named_parameters()), tmp_path / "a.pt")
    assert {type(value) for value in read(tmp_path / "a.pt").values()} == {torch.Tensor}


def test_a_safetensors_file_and_its_folder_are_read(tmp_path, weights):
    save_file(weights, tmp_path / "model.safetensors")
    assert_equal(read(tmp_path / "model.safetensors"), weights)
    assert_equal(read(tmp_path), weights)


def test_a_run_its_checkpoints_and_each_of_them_are_read(tmp_path, weights):
    link(
        tmp_path / "checkpoints",
        "last",
        write(tmp_path / "checkpoints", collect(3, weights, {}, {})),
    )
    (tmp_path / "stray.pt").write_bytes(b"")
    for name in (".", "checkpoints", "checkpoints/last", "checkpoints/step-00000003"):
        assert_equal(read(tmp_path / name), weights)


def test_a_home_folder_is_found(tmp_path, weights, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    torch.save(weights, tmp_path / "a.pt")
    assert_equal(read(Path("~/a.pt")), weights)


def sharded(folder, weights, suffix="safetensors", stem="model"):
    """Write the tensors to files of their own, and the index that Hugging Face gives them."""
    places = {}
    for number, (name, value) in enumerate(weights.items(), 1):
        places[name] = f"{stem}-{number:05}-of-{len(weights):05}.{suffix}"
        write_one = save_file if suffix == "safetensors" else torch.save
        write_one({name: value}, folder / places[name])
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return places


@pytest.mark.parametrize(("suffix", "stem"), [("safetensors", "model"), ("bin", "pytorch_model")])
def test_files_with_an_index_are_read_as_one(tmp_path, weights, suffix, stem):
    sharded(tmp_path, weights, suffix, stem)
    assert_equal(read(tmp_path), weights)
    assert_equal(read(tmp_path / f"{stem}.{suffix}.index.json"), weights)


def test_a_file_that_the_index_names_and_is_not_there_is_named(tmp_path, weights):
    places = sharded(tmp_path, weights)
    (tmp_path / places["a.bias"]).unlink()
    wanted = "1 of the 2 files that .* names are not beside it: model-00002-of-00002.safetensors"
    with pytest.raises(WeightsError, match=wanted):
        read(tmp_path)


def test_a_tensor_that_the_index_names_and_is_not_there_is_named(tmp_path, weights):
    places = sharded(tmp_path, weights)
    save_file({"b": torch.ones(1)}, tmp_path / places["a.bias"])
    with pytest.raises(WeightsError, match=r"not there: a.bias in model-00002.*fetch them again"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{", "wanted JSON"),
        ("[]", "wanted JSON"),
        ('{"weight_map": 3}', "wanted JSON"),
        ("[" * 100_000, "wanted JSON"),
        ('{"weight_map": {"a": "../a.pt"}}', "names files outside"),
        ('{"weight_map": {"a": "/a.pt"}}', "names files outside"),
        ('{"weight_map": {"a": ".."}}', "names files outside"),
        ('{"weight_map": {"a": 1}}', "names files outside"),
        ('{"weight_map": {}}', "holds no tensors"),
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path, text, wanted):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsError, match=wanted):
        read(tmp_path)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([1, 2], "holds a list, wanted names and their tensors"),
        (torch.ones(2), "holds a Tensor, wanted names"),
        ({}, "holds no tensors.* it holds nothing"),
        ({"epoch": 1, "params": {"w": torch.ones(1)}}, "nor under state_dict.* epoch, params"),
        ({"w": torch.ones(1), "epoch": 3}, "epoch in .* is a int, wanted tensors only"),
        ({0: torch.ones(1)}, "names a tensor 0, a int; wanted text"),
        (
            {"model": {"w": torch.ones(1)}, "net": {"w": torch.ones(2)}},
            "in 2 places, model, net; save the one that you mean",
        ),
        ({"w": torch.eye(2).to_sparse()}, "w in .* sparse.*; save it as a dense one"),
        ({"w": torch.ones(2, device="meta")}, "w in .* is a meta"),
    ],
)
def test_what_is_not_weights_is_named(tmp_path, found, wanted):
    torch.save(found, tmp_path / "a.pt")
    with pytest.raises(WeightsError, match=wanted) as met:
        read(tmp_path / "a.pt")
    assert str(tmp_path / "a.pt") in str(met.value)


def test_what_a_module_keeps_beside_its_tensors_is_no_obstacle(tmp_path, weights):
    torch.save({**weights, "a._extra_state": {"scale": 1}}, tmp_path / "a.pt")
    assert_equal(read(tmp_path / "a.pt"), weights)


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("a.pt", b"", "is empty; fetch it again"),
        ("a.safetensors", b"", "is empty; fetch it again"),
        ("a.pt", b"<!DOCTYPE html>", "no file of tensors as torch.save.*; fetch it again"),
        ("a.safetensors", b"<!DOCTYPE html>", "no whole safetensors file: .*; fetch it again"),
        ("a.bin", b"version https://git-lfs.github.com/spec/v1\n", "; git lfs pull"),
        ("a.npz", b"PK", r"wanted one that ends in .safetensors, .pt, .*.index.json"),
    ],
)
def test_a_file_without_weights_is_named(tmp_path, name, data, wanted):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(WeightsError, match=wanted):
        read(tmp_path / name)


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_a_file_cut_off_anywhere_is_refused(tmp_path, kind):
    path = tmp_path / ("a.safetensors" if kind == "safetensors" else "a.pt")
    tensors = {"a": torch.ones(3000), "b": torch.ones(2)}
    if kind == "safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=kind == "zip")
    data = path.read_bytes()
    for size in {*range(1, 200, 7), *range(200, len(data), 997), len(data) - 1}:
        path.write_bytes(data[:size])
        with pytest.raises(WeightsError, match=r"fetch it again|is refused"):
            read(path)


def test_a_file_by_another_kinds_name_is_told_its_own(tmp_path, weights):
    torch.save(weights, tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match=r"may be one of torch.save, whose names end in .pt"):
        read(tmp_path / "a.safetensors")
    save_file(weights, tmp_path / "a.bin")
    with pytest.raises(WeightsError, match=r"let it end in \.safetensors"):
        read(tmp_path / "a.bin")


def test_a_path_that_leads_to_nothing_is_named(tmp_path):
    (tmp_path / "link.pt").symlink_to("nowhere.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    for name, wanted in {
        "a.pt": r"there is no .*a.pt \(from /.*checkpoint.init_from=PATH",
        "link.pt": "is a link to nothing",
        "pipe.pt": "neither a file nor a folder",
    }.items():
        with pytest.raises(WeightsError, match=wanted):
            read(tmp_path / name)


def test_a_folder_without_weights_says_what_it_holds(tmp_path):
    with pytest.raises(WeightsError, match=r"wanted model.safetensors.* it holds nothing"):
        read(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(WeightsError, match=r"or a run's checkpoints/last; it holds config.yaml"):
        read(tmp_path)
    (tmp_path / "best.pt").write_text("")
    with pytest.raises(WeightsError, match=r"say which, checkpoint.init_from=.*/best.pt"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["hello", "1", "{}", "weights"])
def test_a_text_under_the_name_of_weights_is_told_without_a_bare_code(tmp_path, text):
    (tmp_path / "a.pt").write_text(text)
    with pytest.raises(WeightsError) as error:
        read(tmp_path / "a.pt")
    assert not re.search(r": '?\d+'?;", str(error.value))
    assert str(error.value).endswith("fetch it again, or save model.state_dict() anew")
