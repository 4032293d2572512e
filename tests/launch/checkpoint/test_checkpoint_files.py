import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from launch.checkpoint import CheckpointError, link, newest, read
from launch.checkpoint.files import _put


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
def test_a_tensor_comes_back_as_it_was(tmp_path, tensor, save):
    path = save(tmp_path, 1, {"x": tensor})
    model, optimizer, state = read(path)
    assert model["x"].dtype == tensor.dtype
    assert model["x"].shape == tensor.shape
    torch.testing.assert_close(model["x"], tensor.resolve_conj(), rtol=0, atol=0, equal_nan=True)
    assert (optimizer, state) == ({}, {})


@pytest.mark.parametrize("padding", range(1, 17))
def test_complex_numbers_come_back_where_torch_may_read_them(tmp_path, save, padding):
    model = {"x": torch.randn(3, dtype=torch.complex128), "n" * padding: torch.tensor(7)}
    back = read(save(tmp_path, 1, model))[0]
    assert back["x"].data_ptr() % 16 == 0  # else copying it may end the process
    assert torch.equal(back["x"].clone(), model["x"])


def test_state_comes_back_and_names_are_the_models_own(tmp_path, save, model, state):
    optimizer = {"0/b.weight/exp_avg": torch.ones(4, 3), "0/b.weight/step": torch.tensor(3.0)}
    path = save(tmp_path, 120, model, optimizer, state)
    assert path == tmp_path / "step-00000120"
    assert sorted(load_file(path / "model.safetensors")) == ["a.bias", "b.weight"]
    back, moments, told = read(path)
    assert told == state
    assert sorted(moments) == sorted(optimizer)
    assert torch.equal(back["b.weight"], model["b.weight"])


def test_what_was_read_may_be_changed_without_changing_the_file(tmp_path, save, model):
    path = save(tmp_path, 1)
    read(path)[0]["b.weight"].zero_()
    assert torch.equal(read(path)[0]["b.weight"], model["b.weight"])


def test_a_tied_tensor_is_saved_once_and_tied_again(tmp_path, save):
    embedding, head = nn.Embedding(100, 64), nn.Linear(64, 100, bias=False)
    head.weight = embedding.weight
    model = {"head.weight": head.weight, "embedding.weight": embedding.weight}
    path = save(tmp_path, 1, model)
    assert (path / "model.safetensors").stat().st_size < 100 * 64 * 4 + 500
    notes = json.loads((path / "state.json").read_text())
    assert notes["aliases"]["model"] == {"head.weight": "embedding.weight"}
    back = read(path)[0]
    assert back["head.weight"] is back["embedding.weight"]
    assert torch.equal(back["head.weight"], embedding.weight)


def test_parts_of_one_storage_are_saved_apart(tmp_path, save):
    whole = torch.arange(12.0)
    model = {
        "all": whole,
        "first": whole[:6],
        "grid": whole.view(3, 4),
        "turned": whole.view(3, 4).t(),
    }
    path = save(tmp_path, 1, model)
    assert json.loads((path / "state.json").read_text())["aliases"]["model"] == {}
    back = read(path)[0]
    for name, tensor in model.items():
        assert torch.equal(back[name], tensor), name
    back["first"].zero_()
    assert torch.equal(back["all"], whole)


def test_empty_tensors_are_never_tied(tmp_path, save):
    back = read(save(tmp_path, 1, {"a": torch.zeros(0), "b": torch.zeros(0)}))[0]
    assert back["a"] is not back["b"]


def test_equal_tensors_give_equal_bytes_whatever_order_time_and_folder(
    tmp_path, save, files_of, model, state
):
    save(tmp_path / "one", 5, model, {"0/x": torch.ones(2)}, state)
    turned = {name: model[name].clone() for name in reversed(model)}
    save(tmp_path / "two", 5, turned, {"0/x": torch.ones(2)}, dict(reversed(state.items())))
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_last_is_a_relative_link_to_the_newest(tmp_path, save):
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert os.readlink(tmp_path / "last") == "step-00000002"
    link(tmp_path, "best", tmp_path / "step-00000001")
    assert os.readlink(tmp_path / "best") == "step-00000001"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "best", "last", "step-00000001", "step-00000002",
    ]  # fmt: skip


def test_a_link_takes_the_place_of_the_copy_that_became_of_it(tmp_path, save):
    link(tmp_path / "a", "best", save(tmp_path / "a", 1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # follows links, as cp -rL does
    assert (tmp_path / "b/last").is_dir()
    assert not (tmp_path / "b/last").is_symlink()
    path = save(tmp_path / "b", 2)
    link(tmp_path / "b", "best", path)
    assert [os.readlink(tmp_path / "b" / name) for name in ("last", "best")] == [path.name] * 2
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == [
        "best", "last", "step-00000001", "step-00000002",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["last", "best"])
def test_a_folder_of_others_in_a_links_place_is_named_and_kept(tmp_path, save, name):
    path = save(tmp_path, 1)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.tex").write_text("mine")
    with pytest.raises(CheckpointError, match=rf"/{name} is in the way: wanted a link .* move it"):
        link(tmp_path, name, path)
    assert (tmp_path / name / "thesis.tex").read_text() == "mine"


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path, save):
    save(tmp_path, 3, {"x": torch.zeros(2)}, {}, {"try": 1})
    path = save(tmp_path, 3, {"x": torch.ones(2)}, {}, {"try": 2})
    model, _, state = read(path)
    assert torch.equal(model["x"], torch.ones(2))
    assert state == {"try": 2}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last", "step-00000003"]


def test_killed_while_replacing_the_old_one_is_still_found(tmp_path, save):
    path = save(tmp_path, 3, {"x": torch.zeros(2)})
    with pytest.raises(FileNotFoundError):
        _put(tmp_path / ".gone.part", path)  # the moment between the two renames
    found, skipped = newest(tmp_path)
    assert found is not None
    assert read(found)[0]["x"].tolist() == [0, 0]
    assert skipped == []
    save(tmp_path, 3, {"x": torch.ones(2)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last", "step-00000003"]


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert newest(tmp_path / "absent") == (None, [])
    (tmp_path / "step-00000007").mkdir()
    assert newest(tmp_path)[0] is None
    assert newest(tmp_path)[1][0][1] == "MANIFEST.json: No such file or directory"


def test_steps_are_ordered_as_numbers(tmp_path, save):
    save(tmp_path, 99_999_999)
    last = save(tmp_path, 100_000_000)
    assert newest(tmp_path)[0] == last
