import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from launch.config import ConfigError, build_task
from launch.tasks import Supervised, accuracy
from parallel import UsageError

LINEAR = {"_target_": "torch.nn.Linear", "in_features": 3, "out_features": 2}
DIGITS = {"_target_": "launch.tasks.digits.pictures", "split": "train"}
CROSS_ENTROPY = "torch.nn.functional.cross_entropy"
BATCH = (torch.eye(3), torch.tensor([0, 1, 1]))


def task(**settings):
    named = {"model": LINEAR, "train": DIGITS, "loss": CROSS_ENTROPY} | settings
    return build_task({"_target_": "launch.tasks.Supervised"} | named)


def test_the_model_is_built_when_it_is_asked_for_so_that_the_seed_counts():
    built = task()
    weights = []
    for _ in range(2):
        torch.manual_seed(0)
        weights.append(built.model().weight)
    torch.manual_seed(0)
    assert weights[0].equal(nn.Linear(3, 2).weight)
    assert weights[0].equal(weights[1])


def test_layers_in_a_row_need_no_class():
    layers = [{"_target_": "torch.nn.Flatten"}, LINEAR, {"_target_": "torch.nn.ReLU"}]
    model = task(model={"_target_": "torch.nn.Sequential", "_args_": layers}).model()
    assert [type(layer) for layer in model] == [nn.Flatten, nn.Linear, nn.ReLU]


def test_splits_are_those_given():
    valid = {"_target_": "launch.tasks.digits.pictures", "split": "valid"}
    sizes = {split: len(data) for split, data in task(valid=valid).datasets().items()}
    assert sizes == {"train": 1437, "valid": 360}
    assert list(task().datasets()) == ["train"]


@pytest.mark.parametrize("loss", [CROSS_ENTROPY, {"_target_": "torch.nn.CrossEntropyLoss"}])
def test_a_loss_is_a_functions_path_or_built(loss):
    built = task(loss=loss, metrics={"accuracy": "launch.tasks.accuracy"})
    model = built.model()
    said = built.loss(model, BATCH)
    assert said["loss"].equal(nn.functional.cross_entropy(model(BATCH[0]), BATCH[1]))
    assert said["loss"].requires_grad
    assert said["accuracy"].tolist() == accuracy(model(BATCH[0]), BATCH[1]).tolist()


def test_ready_pieces_will_do():
    model, data = nn.Linear(3, 2), TensorDataset(*BATCH)
    ready = Supervised(model, data, nn.functional.cross_entropy, metrics={"one": lambda *_: 1.0})
    assert ready.model() is not model
    assert ready.model().weight.equal(model.weight)
    assert ready.datasets()["train"] is data
    assert ready.loss(model, BATCH)["one"].item() == 1.0


def test_targets_may_be_nested():
    ready = Supervised(
        nn.Identity(),
        TensorDataset(*BATCH),
        lambda outputs, targets: (outputs - targets["x"]).sum(),
    )
    assert ready.loss(nn.Identity(), [torch.ones(2), {"x": torch.ones(2)}])["loss"] == 0


def test_a_pipelines_ends_give_the_same_loss():
    built = task()
    model = built.model()
    ends = built.loss_of_outputs(model(built.inputs(BATCH)), BATCH)
    assert ends["loss"].equal(built.loss(model, BATCH)["loss"])


def test_it_can_be_sent_to_a_process():
    assert pickle.loads(pickle.dumps(task())).model().weight.shape == (2, 3)


@pytest.mark.parametrize(
    ("batch", "met"),
    [
        (torch.zeros(2), "met a Tensor"),
        ({"x": 1}, "met a dict"),
        ((1, 2, 3), "met a tuple of 3"),
        ([1], "met a list of 1"),
    ],
)
def test_a_batch_that_is_no_pair_is_refused(batch, met):
    with pytest.raises(UsageError, match=f"a pair .inputs, targets., {met}; .*or write a Task"):
        task().loss(nn.Identity(), batch)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": {"_target_": "torch.nn.Linear"}}, r"needs task\.model\.in_features"),
        ({"model": {"_target_": "torch.optim.SGD"}}, r"task\.model: wanted a Module"),
        ({"model": "torch.nn.Linear"}, r"wanted task\.model\._target_=package.module.Name"),
        ({"train": {"_target_": "launch.tasks.digits.picture"}}, "did you mean 'pictures'"),
        ({"train": "data"}, r"wanted task\.train\._target_"),
        ({"loss": "torch.nn.CrossEntropyLoss"}, r"made first; type task\.loss={_target_: torch.nn"),
        ({"loss": "torch.nn.functional.cross_entrop"}, "did you mean 'cross_entropy'"),
        ({"loss": "torch.nn.functional"}, r"task\.loss: wanted a function of outputs and targets"),
        ({"loss": 3}, r"task\.loss: wanted a function .* met 3"),
        ({"loss": LINEAR}, "Linear has parameters, and only the model's are trained"),
        ({"metrics": {"loss": CROSS_ENTROPY}}, r"task\.metrics\.loss: that name means"),
        ({"metrics": {"accuracy": "accuracy"}}, r"task\.metrics\.accuracy=accuracy: wanted"),
        ({"los": 1}, r"task\.los"),
    ],
)
def test_what_cannot_be_is_refused_before_any_data_is_read(settings, words):
    with pytest.raises(ConfigError, match=words):
        task(**settings)


def test_all_three_pieces_are_asked_for():
    with pytest.raises(ConfigError, match=r"needs task\.model, task\.train, task\.loss"):
        build_task({"_target_": "launch.tasks.Supervised"})


def test_a_data_set_must_be_one():
    with pytest.raises(ConfigError, match=r"task\.train: wanted a data set, .*met Linear"):
        task(train=LINEAR).datasets()
