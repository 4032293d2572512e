"""Objects made of dicts with a `_target_`."""

import re

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from launch.config import ConfigError, build, check_target
from launch.task import Task

SGD = "torch.optim.SGD"
LINEAR = "torch.nn.Linear"


def weights():
    return [nn.Parameter(torch.zeros(1))]


def test_what_comes_later_is_given_by_place_or_by_name():
    settings = {"_target_": "torch.nn.ParameterList"}
    for made in (
        build(settings, nn.Module, "weights", weights()),
        build(settings, nn.Module, "weights", values=weights()),
    ):
        assert len(made) == 1


def test_targets_inside_are_built_first():
    settings = {
        "_target_": "torch.nn.Sequential",
        "_args_": [
            {"_target_": LINEAR, "in_features": 2, "out_features": 3},
            {"_target_": "torch.nn.ReLU"},
        ],
    }
    assert [type(m) for m in build(settings, nn.Module, "model")] == [nn.Linear, nn.ReLU]


def test_targets_inside_stay_settings_where_a_mapping_is_wanted(mine):
    inner = {"_target_": "nowhere.Nothing"}
    task = build({"_target_": "mine.Typed", "path": "", "width": 1, "spec": inner}, object, "task")
    assert task.spec == inner


def test_a_target_may_be_a_function_or_a_class_method(mine):
    assert build({"_target_": "mine.task_of", "width": 2}, object, "task").width == 2
    made = build({"_target_": "fractions.Fraction.from_float", "f": 0.5}, object, "x")
    assert made == 0.5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {},
            r"model does not say what to build; type model._target_=package.module.Name, a Module",
        ),
        ({"_target_": 3}, "model._target_: wanted a name such as package.module.Name; met 3"),
        ({"_target_": "a..b"}, "wanted a name such as package.module.Name; met 'a..b'"),
        ({"_target_": "Net"}, "model._target_=Net: wanted the module too, such as my_module.Net"),
        (
            {"_target_": "nowhere.Net"},
            "there is no module 'nowhere'; searched are the conf.*folder",
        ),
        ({"_target_": "mine.sub.Net"}, "module mine has no 'sub'"),
        ({"_target_": "mine.Typd"}, "module mine has no 'Typd'; did you mean 'Typed'"),
        ({"_target_": "mine.Typed.mdel"}, "class mine.Typed has no 'mdel'; did you mean 'model'"),
        ({"_target_": "mine.thing"}, "mine.thing: wanted a class or function; this is an int"),
        ({"_target_": "mine.Typed"}, r"model: wanted a Module .*; mine.Typed is another class"),
        ({"_target_": "mine.boom"}, r"nms does not exist \(.*mine.py:\d+\); torchvision was built"),
        ({"_target_": "mine.task_of", "width": 2}, "mine.task_of makes a Typed"),
        ({"_target_": LINEAR}, "needs model.in_features, model.out_features; type model.in_feat"),
        (
            {"_target_": LINEAR, "in_features": 1, "out_features": 1, "bais": 0},
            "there is no key model.bais; did you mean 'model.bias'",
        ),
        (
            {"_target_": LINEAR, "in_features": -1, "out_features": 1},
            r"model: Linear raised RuntimeError: .*negative dimension.*\.py:\d+\)",
        ),
        (
            {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": LINEAR, "in_feature": 1}]},
            r"there is no key model._args_\[0\].in_feature; did you mean",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(mine, settings, said):
    with pytest.raises(ConfigError, match=said):
        build(settings, nn.Module, "model")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_like_this", r"ModuleNotFoundError: .*nothing_like_this.*broken\.py:1\)"),
        ("\n\n1 / 0", r"importing broken raised ZeroDivisionError: .*broken\.py:3\)"),
        ("x = (", r"importing broken raised SyntaxError: '\(' was never closed \(.*broken\.py:1\)"),
        ("import sys\nsys.exit(3)", r"importing broken raised SystemExit: 3 \(.*broken\.py:2\)"),
        (
            "def __getattr__(name):\n    raise OSError('x')",
            r"broken.Net raised OSError: x \(.*:2\)",
        ),
    ],
)
def test_an_error_inside_a_users_module_is_shown_with_its_place(write, mine, source, said):
    write("broken.py", source)
    with pytest.raises(ConfigError, match=said):
        build({"_target_": "broken.Net"}, nn.Module, "model")


def test_what_an_optimizer_says_of_its_values_is_shown():
    with pytest.raises(ConfigError, match=r"SGD raised ValueError: Invalid learning rate: -1 \("):
        build({"_target_": SGD, "lr": -1}, Optimizer, "optimizer", weights())


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("os.system", "os.system is a function that makes none; name a class, or a function"),
        ("shutil.rmtree", "shutil.rmtree is a function that makes none"),
        ("mine.number_of", "mine.number_of makes an int"),
        ("mine.nothing_of", "mine.nothing_of makes a NoneType"),
    ],
)
def test_a_function_that_makes_something_else_is_not_called(mine, tmp_path, target, said):
    made, kept = tmp_path / "made", tmp_path / "kept"
    kept.mkdir()
    word = str(kept) if target == "shutil.rmtree" else f"touch {made}"
    with pytest.raises(ConfigError, match=f"task: wanted a Task .*; {said}"):
        build({"_target_": target, "_args_": [word]}, Task, "task")
    assert kept.exists()
    assert not made.exists()


@pytest.mark.parametrize("name", ["any_net", "open_net", "some_net", "wrapped_net"])
def test_a_function_that_may_make_it_is_called(mine, name):
    assert isinstance(build({"_target_": f"mine.{name}"}, nn.Module, "model"), nn.Linear)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (Optimizer, {"_target_": SGD, "lr": "abc"}, "m.lr: wanted a number, met 'abc'; .*=0.001"),
        (Optimizer, {"_target_": SGD, "nesterov": "x"}, "m.nesterov: wanted true or false, met"),
        (nn.Module, {"_target_": LINEAR, "in_features": "a", "out_features": 1},
         "m.in_features: wanted a whole number, met 'a'$"),
        (object, {"_target_": "mine.Rated", "rate": "x"}, "rate: wanted a number, met 'x'; .*=0.5"),
    ],
)  # fmt: skip
def test_text_where_a_number_is_wanted_is_named_with_its_key(mine, kind, settings, said):
    with pytest.raises(ConfigError, match=said):
        check_target(settings, kind, "m", leading=int(kind is Optimizer))


def test_text_that_may_be_meant_passes(mine):
    check_target({"_target_": "torch.nn.Conv2d", "in_channels": 1, "out_channels": 1,
                  "kernel_size": 3, "padding": "same"}, nn.Module, "m")  # fmt: skip
    check_target({"_target_": "mine.Rated", "mode": "auto", "size": "auto"}, object, "m")


def test_check_finds_the_same_without_building():
    check_target({"_target_": SGD, "lr": 0.5}, Optimizer, "optimizer", leading=1)
    with pytest.raises(ConfigError, match=r"no key optimizer.lrr; did you mean 'optimizer.lr'"):
        check_target({"_target_": SGD, "lrr": 1}, Optimizer, "optimizer", leading=1)
    with pytest.raises(ConfigError, match="optimizer: wanted an Optimizer"):
        check_target({"_target_": LINEAR}, Optimizer, "optimizer", leading=1)
    step = {"_target_": "torch.optim.lr_scheduler.StepLR"}
    with pytest.raises(ConfigError, match=r"StepLR needs scheduler.step_size; type scheduler"):
        check_target(step, LRScheduler, "scheduler", given=("optimizer",))


def test_parameters_that_are_given_cannot_be_keys():
    with pytest.raises(ConfigError, match=r"there is no key optimizer.params"):
        check_target({"_target_": SGD, "params": 1}, Optimizer, "optimizer", leading=1)


def test_a_usage_error_of_the_users_own_passes_unchanged(write, mine):
    write("strict.py", "from parallel import UsageError\ndef net(): raise UsageError('say please')")
    with pytest.raises(Exception, match=re.compile("^say please$")):
        build({"_target_": "strict.net"}, nn.Module, "model")
