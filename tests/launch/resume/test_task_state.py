"""What a task keeps comes back as it was, wherever in it a tensor lies."""

from __future__ import annotations

import pytest
import torch

from launch.checkpoint import collect, read, write
from launch.failures import TrainingError
from launch.resume import task_state
from tests.tasks import Probe

LOOP: dict = {}
LOOP["itself"] = LOOP


class Keeps(Probe):
    def state_dict(self):
        return self.kept

    def load_state_dict(self, state):
        self.kept = state


def keeping(kept):
    task = Keeps()
    task.kept = kept
    return task


def test_nested_tensors_come_back_by_way_of_the_disk(tmp_path):
    kept = {
        "ema": {"0.weight": torch.ones(2, 3), "0": torch.tensor(2.0), 0: torch.tensor([3])},
        "list": [torch.zeros(1), [torch.tensor(True)], {"a": 1.5}],
        "text": "words",
    }
    plain, tensors = task_state.taken(keeping(kept))
    path = write(tmp_path, collect(1, {}, tensors, {"kept": plain}))
    _, tensors, state = read(path)
    back = Keeps()
    task_state.give_back(back, state["kept"], tensors)
    assert back.kept["ema"]["0"].shape == ()
    assert back.kept.pop("text") == kept.pop("text")
    torch.testing.assert_close(back.kept, kept, rtol=0, atol=0)


def test_what_is_given_back_is_nobody_elses():
    held = torch.zeros(2)
    plain, tensors = task_state.taken(keeping({"a": held}))
    back = Keeps()
    task_state.give_back(back, plain, tensors)
    back.kept["a"] += 1
    assert held.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (None, r"Keeps.state_dict\(\) returned a NoneType, wanted a mapping of names"),
        (LOOP, r"Keeps.state_dict\(\) returned a mapping that holds itself"),
    ],
)
def test_a_state_that_is_none_is_refused_in_words(kept, words):
    with pytest.raises(TrainingError, match=words):
        task_state.taken(keeping(kept))
