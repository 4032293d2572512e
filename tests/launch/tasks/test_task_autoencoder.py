import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from launch.tasks.autoencoder import Autoencoder, RandomPictures, scaled

FULL = [3, 16, 32, 64, 128, 256, 512, 1024, 512, 256, 128, 64, 32, 16, 3]


def test_14_convolutions_of_3x3_with_the_stated_channels_and_a_relu_after_each():
    with torch.device("meta"):
        layers = list(Autoencoder().model())
    convolutions, others = layers[::2], layers[1::2]
    assert [layer.in_channels for layer in convolutions] + [3] == FULL
    assert [layer.out_channels for layer in convolutions] == FULL[1:]
    assert {(c.kernel_size, c.padding, c.stride) for c in convolutions} == {
        ((3, 3), (1, 1), (1, 1))
    }
    assert len(others) == 14
    assert all(isinstance(layer, nn.ReLU) for layer in others)


@pytest.mark.parametrize(
    ("scale", "channels"),
    [
        (1.0, FULL),
        (0.125, [3, 2, 4, 8, 16, 32, 64, 128, 64, 32, 16, 8, 4, 2, 3]),
        (0.001, [3] + [1] * 13 + [3]),
    ],
)
def test_the_scale_leaves_the_pictures_channels_and_at_least_one(scale, channels):
    assert scaled(scale) == channels


def test_a_picture_keeps_its_size_and_its_loss_is_the_squared_error_to_itself():
    task = Autoencoder(image_size=16, channel_scale=0.01)
    model, batch = task.model(), task.datasets()["train"].__getitems__([0, 1])
    outputs = model(task.inputs(batch))
    assert outputs.shape == batch.shape == (2, 3, 16, 16)
    expected = functional.mse_loss(outputs, batch)
    assert task.loss(model, batch).equal(expected)
    assert task.loss_of_outputs(outputs, batch).equal(expected)


def test_512_pixels_a_side_and_64_pictures_unless_told():
    pictures = Autoencoder().datasets()["train"]
    assert (len(pictures), pictures[63].shape) == (64, (3, 512, 512))


def test_a_batch_is_its_pictures_together():
    task = Autoencoder(image_size=8)
    pictures = task.datasets()["train"]
    assert pictures.__getitems__([5, 2]).equal(task.collate([pictures[5], pictures[2]]))


def test_a_picture_depends_on_its_index_alone():
    before = torch.get_rng_state()
    pictures = RandomPictures(4, 8)
    assert pictures[3].equal(pickle.loads(pickle.dumps(pictures))[3])
    assert pictures[3].equal(RandomPictures(100, 8)[3])
    assert not pictures[3].equal(pictures[2])
    assert torch.get_rng_state().equal(before)
    assert 0 <= pictures[0].min() <= pictures[0].max() <= 1


def test_they_end():
    assert len(list(RandomPictures(3, 8))) == 3
