"""What a later layer drops of an earlier one."""

import pytest

from launch.config import load

SGD = "torch.optim.SGD"


def test_another_target_drops_the_earlier_siblings(write):
    file = write("a.yaml", "optimizer: {betas: [0.9, 0.99], lr: 0.1}")
    assert load([file], [f"optimizer._target_={SGD}"]).optimizer == {"_target_": SGD}


def test_the_same_target_keeps_them(write):
    file = write("a.yaml", "optimizer: {_target_: torch.optim.AdamW, eps: 0.1}")
    assert load([file]).optimizer == {"_target_": "torch.optim.AdamW", "lr": 2e-3, "eps": 0.1}


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [2, 1, 0]])
def test_the_command_line_is_one_layer_in_any_order(order):
    words = ["optimizer.momentum=0.5", f"optimizer._target_={SGD}", "optimizer.lr=1"]
    config = load([], [words[n] for n in order])
    assert config.optimizer == {"_target_": SGD, "momentum": 0.5, "lr": 1}


def test_each_file_is_a_layer(write):
    first = write("a.yaml", "task: {_target_: a.A, width: 1}")
    second = write("b.yaml", "task: {depth: 2, _target_: a.B}")
    third = write("c.yaml", "task: {height: 3}")
    task = load([first, second, third]).task
    assert task == {"_target_": "a.B", "depth": 2, "height": 3}


def test_a_nested_target_drops_only_its_own_siblings(write):
    file = write("a.yaml", "task: {_target_: a.A, model: {_target_: a.M, width: 3}, keep: 1}")
    task = load([file], ["task.model._target_=a.N", "task.model.depth=2"]).task
    assert task == {"_target_": "a.A", "keep": 1, "model": {"_target_": "a.N", "depth": 2}}


def test_a_target_inside_a_list_does_too(write):
    file = write("a.yaml", "task: {_target_: a.A, parts: [{_target_: a.M, width: 3}, {width: 1}]}")
    task = load([file], ["task.parts[0]._target_=a.N"]).task
    assert task["parts"] == [{"_target_": "a.N"}, {"width": 1}]


@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        (["strategy.name=single"], {"name": "single"}),
        (["strategy.bucket_mb=5", "strategy.name=other"], {"name": "other", "bucket_mb": 5}),
        (["strategy.name=ddp"], {"name": "ddp", "sync_batch_norm": True}),
        (["strategy._target_=a.S", "strategy.k=1"], {"_target_": "a.S", "k": 1}),
        (["strategy={name: single}"], {"name": "single"}),
    ],
)
def test_another_strategy_drops_the_keys_of_the_first(write, words, strategy):
    file = write("a.yaml", "strategy: {name: ddp, sync_batch_norm: true}")
    assert load([file], words).strategy == strategy


def test_a_name_elsewhere_is_an_ordinary_key(write):
    file = write("a.yaml", "task: {name: a, width: 3}")
    assert load([file], ["task.name=b"]).task["width"] == 3


def test_a_whole_section_on_the_command_line_is_merged():
    config = load([], ["train={epochs: 3}", "train.accumulate=2", "train={max_steps: 9}"])
    assert (config.train.epochs, config.train.accumulate, config.train.max_steps) == (3, 2, 9)


def test_a_list_replaces_a_list_and_may_then_be_changed(write):
    file = write("a.yaml", "optimizer: {betas: [0.1, 0.2, 0.3]}")
    config = load([file], ["optimizer.betas=[1, 2]", "optimizer.betas[0]=3"])
    assert config.optimizer["betas"] == [3, 2]


def test_numbers_as_keys_are_met_by_the_command_line(write):
    file = write("a.yaml", "task: {names: {0: cat, 1: dog}}")
    assert load([file], ["task.names.1=cow"]).task["names"] == {0: "cat", 1: "cow"}


def test_a_scheduler_can_be_made_and_taken_away(write):
    file = write("a.yaml", "scheduler: {_target_: a.S, gamma: 2}")
    assert load([file], ["scheduler=null"]).scheduler is None
    assert load([], ["scheduler.gamma=2", "scheduler._target_=a.S"]).scheduler == {
        "_target_": "a.S",
        "gamma": 2,
    }
