import torch

from launch.tasks.net import Net


def test_the_model_is_10_5_2():
    layers = [(layer.in_features, layer.out_features) for layer in Net().model()[::2]]
    assert layers == [(10, 5), (5, 2)]


def test_10000_random_samples_of_two_classes_the_same_every_time():
    (first,), (second,) = (Net().datasets().values() for _ in range(2))
    x, y = first.tensors
    assert (x.shape, y.shape, set(y.tolist())) == ((10_000, 10), (10_000,), {0, 1})
    assert 4_800 < y.sum() < 5_200
    assert all(map(torch.equal, first.tensors, second.tensors))


def test_the_samples_leave_the_runs_randomness_alone():
    before = torch.get_rng_state()
    Net().datasets()
    assert torch.get_rng_state().equal(before)


def test_valid_samples_are_others_and_do_not_change_the_training():
    both = Net(valid_samples=100).datasets()
    assert len(both["valid"]) == 100
    assert both["train"].tensors[0].equal(Net().datasets()["train"].tensors[0])
    assert not both["valid"].tensors[0].equal(both["train"].tensors[0][:100])


def test_sizes_are_keys():
    task = Net(samples=7, features=3, width=4)
    x, _ = task.datasets()["train"].tensors
    assert task.model()(x).shape == (7, 2)


def test_it_says_loss_and_accuracy():
    task = Net()
    said = task.loss(task.model(), task.datasets()["train"][:6])
    assert (said["loss"].shape, said["accuracy"].shape) == ((), (6,))
