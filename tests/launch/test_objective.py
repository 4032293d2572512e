"""What a task may say of a batch, and what it may not."""

from __future__ import annotations

import pytest
import torch

from launch.evaluation import combine
from launch.objective import outcome
from parallel import Objective, Outcome, Settings, Share, Single, UsageError, World

LOSS = torch.tensor(2.0)


@pytest.mark.parametrize(
    ("said", "weight"),
    [
        (LOSS, None),
        ((LOSS, 3), 3.0),
        ({"loss": LOSS, "weight": torch.tensor(4)}, 4.0),
        ({"loss": LOSS}, None),
    ],
)
def test_a_loss_comes_alone_with_a_weight_or_in_a_dict(said, weight):
    assert (outcome(said).loss, outcome(said).weight) == (LOSS, weight)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (1.0, "loss is a float, wanted a 0-d tensor"),
        ({"accuracy": LOSS}, 'wanted a 0-d tensor, .* or a dict with "loss"'),
        ({"loss": LOSS, "accuracy": 0.5}, "metric 'accuracy' is a float, wanted a tensor"),
        ({"loss": LOSS, 5: LOSS}, r"names of metrics are text, met \[5\]"),
        ((LOSS, torch.ones(3)), r"weight of the task's loss has shape \[3\], wanted .*0-d tensor"),
        ((LOSS, "many"), "weight of the task's loss has str"),
    ],
)
def test_anything_else_is_refused(said, words):
    with pytest.raises(UsageError, match=words):
        outcome(said)


def test_a_metric_that_only_some_batches_have_is_the_mean_over_those():
    batches = [
        Outcome(LOSS, 1.0, {"a": torch.ones(1)}),
        Outcome(LOSS, 1.0, {"b": torch.zeros(1)}),
        Outcome(LOSS, 1.0),
    ]
    assert combine(batches, 3, World()) == ({"a": 1.0, "b": 0.0, "loss": 2.0}, 3)


def test_weights_come_with_every_batch_or_with_none():
    weights = iter([None, 2.0])

    def loss(model, batch):
        return Outcome(model(batch).mean(), next(weights))

    engine = Single().engine(
        torch.nn.Linear(2, 1),
        lambda model: [torch.optim.SGD(model.parameters(), lr=0.1)],
        Objective(loss, loss),
        Settings(),
        World(),
    )
    share = Share([torch.ones(1, 2)], [1], 1)
    engine.train_step(share)
    with pytest.raises(UsageError, match="a weight with some batches and none with others"):
        engine.train_step(share)
