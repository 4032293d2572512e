"""What a task may say of a batch, and what it may not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from launch.evaluation import combine
from launch.objective import objective, outcome
from parallel import Objective, Outcome, Settings, Share, Single, UsageError, World, sums
from tests.tasks import Probe

LOSS = torch.tensor(2.0)


@pytest.mark.parametrize(
    ("said", "weight"),
    [
        (LOSS, None),
        ((LOSS, 3), 3.0),
        ({"loss": LOSS, "weight": torch.tensor(4)}, 4.0),
        ({"loss": LOSS}, None),
        ((LOSS, 0), 0.0),
        ({"loss": LOSS, "weight": torch.tensor(True)}, 1.0),
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
        ((LOSS, -1), "weight of the task's loss is -1, wanted how many samples or tokens"),
        ((LOSS, float("nan")), "weight of the task's loss is nan, wanted how many"),
        ({"loss": LOSS, "weight": torch.tensor(-2.0)}, "weight of the task's loss is -2, wanted"),
        ((LOSS, torch.tensor(float("inf"))), "weight of the task's loss is inf, wanted how many"),
        ((LOSS, torch.tensor(1j)), "weight of the task's loss has complex numbers, wanted"),
        ({"loss": LOSS, "a": torch.ones(2, 1)}, r"metric 'a' is of shape \[2, 1\], wanted .*\[n\]"),
        ({"loss": LOSS, "a": torch.ones(2) * 1j}, "metric 'a' is complex, wanted .*real numbers"),
        (
            {"loss": (LOSS, 3)},
            r'a tuple in the dict.*; a weight stands beside it: {"loss": mean, "w',
        ),
        ({"loss": 1.0}, 'loss is a float in the dict\'s "loss", wanted a 0-d tensor$'),
        ((1.0, 3), r"loss is a float in \(loss, weight\), wanted a 0-d tensor$"),
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


FORMS = [torch.ones(3), torch.ones(()), torch.ones(2)]


@pytest.mark.parametrize("forms", [FORMS, FORMS[1:]])
def test_a_metric_that_changes_its_form_is_refused(forms):
    words = r"metric 'a' is one value for each sample \[n\] with some batches and a mean \[\] with"
    with pytest.raises(UsageError, match=words):
        sums([Outcome(LOSS, 1.0, {"a": form}) for form in forms])


@dataclass
class Forms(Probe):
    """A metric that is a mean with every second batch."""

    asked: int = 0

    def loss(self, model, batch):
        self.asked += 1
        return {"loss": model(batch[0]).mean(), "a": batch[1] if self.asked % 2 else LOSS}


@pytest.mark.parametrize("question", ["loss", "evaluate"])
def test_a_task_whose_metric_changes_its_form_is_told_at_once(question):
    task = Forms()
    ask, model = getattr(objective(task), question), task.model()
    batch = (torch.ones(2, 3), torch.ones(2))
    ask(model, batch)
    with pytest.raises(UsageError, match=r"metric 'a' is one value .*squeeze"):
        ask(model, batch)


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
