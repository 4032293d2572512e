import pickle

import numpy as np
import pytest
import torch

from launch.config import ConfigError, build_task
from launch.tasks import digits
from launch.tasks.digits import Digits, pictures


def test_the_file_holds_whole_numbers_alone_and_is_small():
    with np.load(digits.FILE, allow_pickle=False) as arrays:
        assert sorted(arrays) == ["images", "labels"]
        images, labels = arrays["images"], arrays["labels"]
    assert (images.shape, images.dtype, images.min(), images.max()) == ((1797, 8, 8), "u1", 0, 16)
    assert (labels.shape, labels.dtype) == ((1797,), "u1")
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images.sum(dtype=int) == 561_718
    assert digits.FILE.stat().st_size < 60_000


def test_the_licence_names_source_terms_and_change():
    text = digits.FILE.with_suffix(".LICENSE").read_text()
    for words in ("10.24432/C50P49", "scikit-learn 1.9.1", "BSD 3-Clause", "What changed", "0..16"):
        assert words in text


def test_the_last_360_in_file_order_are_held_out():
    splits = Digits().datasets()
    with np.load(digits.FILE) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    for split, part in (("train", slice(0, 1437)), ("valid", slice(1437, None))):
        x, y = splits[split].tensors
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert (x.squeeze(1).numpy() * 16).astype("u1").tolist() == images[part].tolist()
        assert y.tolist() == labels[part].tolist()
    counts = torch.bincount(splits["valid"].tensors[1]).tolist()
    assert counts == [35, 36, 35, 37, 37, 37, 37, 36, 33, 37]


def test_the_first_pictures_show_0_1_and_2():
    x, y = pictures("train")[:3]
    assert y.tolist() == [0, 1, 2]
    hole = x[:, 0, 3:5, 3:5].mean(dim=(1, 2))  # the middle of the picture
    assert hole[0] < 0.1 < 0.9 < hole[1]


def test_nothing_held_out_means_no_valid_split():
    assert {k: len(v) for k, v in Digits(held_out=0).datasets().items()} == {"train": 1797}


@pytest.mark.parametrize(("split", "held_out"), [("test", 360), ("train", 1797)])
def test_a_split_that_cannot_be_is_refused(split, held_out):
    with pytest.raises(ConfigError, match=f"met split={split} and held_out={held_out}; leave out"):
        pictures(split, held_out)


def test_the_model_is_layers_in_a_row_with_30762_parameters():
    model = Digits().model()
    assert isinstance(model, torch.nn.Sequential)
    assert sum(p.numel() for p in model.parameters()) == 30_762
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_batch_norm_can_be_left_out():
    model = build_task({"_target_": "launch.tasks.digits.Digits", "batch_norm": False}).model()
    assert not list(model.buffers())


def test_accuracy_has_one_value_a_picture():
    task = Digits()
    outputs = torch.eye(10)[[3, 5, 5]]
    said = task.loss_of_outputs(outputs, (None, torch.tensor([3, 5, 0])))
    assert said["accuracy"].tolist() == [True, True, False]
    assert said["loss"].shape == ()


def test_loss_is_the_loss_of_the_models_outputs():
    task = Digits(width=4)
    model, batch = task.model().eval(), task.datasets()["valid"][:5]
    whole, cut = task.loss(model, batch), task.loss_of_outputs(model(task.inputs(batch)), batch)
    assert whole["loss"].equal(cut["loss"])


def test_it_learns():
    task = Digits(width=8)
    torch.manual_seed(0)
    model, train = task.model(), task.datasets()["train"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for start in range(0, 1437, 64):
        optimizer.zero_grad()
        task.loss(model, train[start : start + 64])["loss"].backward()
        optimizer.step()
    said = task.evaluate(model.eval(), task.datasets()["valid"][:])
    assert said["accuracy"].float().mean() > 0.8


def test_task_and_splits_can_be_sent_to_a_process():
    task = pickle.loads(pickle.dumps(Digits()))
    assert len(pickle.loads(pickle.dumps(task.datasets()["valid"]))) == 360
