import time

import pytest
import torch
from torch import nn
from torch.optim import SGD

from parallel import DDP, Objective, Outcome, Phases, Settings, Share
from parallel.phases import NAMES


def test_I1_the_marks_of_a_step_add_up_to_its_time():
    phases = Phases(torch.device("cpu"))
    time.sleep(0.01)  # belongs to no phase
    phases.begin()
    start = time.perf_counter()
    for _ in range(2):
        for name in NAMES:
            time.sleep(0.002)
            phases.end(name)
    whole = time.perf_counter() - start
    found = phases.seconds()
    assert tuple(found) == NAMES
    assert NAMES == ("data", "transfer", "forward", "backward", "communication", "optimizer")
    assert all(seconds >= 0.004 for seconds in found.values())
    assert sum(found.values()) == pytest.approx(whole, abs=2e-2)


def test_what_is_forgotten_counts_no_more():
    phases = Phases(torch.device("cpu"))
    phases.end("data")
    phases.forget()
    assert phases.seconds() == dict.fromkeys(NAMES, 0.0)


def test_a_phase_without_a_name_of_ours_is_refused():
    with pytest.raises(KeyError, match="sleep"):
        Phases(torch.device("cpu")).end("sleep")


def loss(model, batch):
    return Outcome((model(batch) ** 2).mean())


def wait_for_a_slow_rank(world):
    def late(model, batch):
        if world.rank == 1:
            time.sleep(0.1)
        return loss(model, batch)

    objective = Objective(late, loss)
    make = lambda module: [SGD(module.parameters(), lr=0.1)]  # noqa: E731 - two lines
    engine = DDP().engine(nn.Linear(2, 2), make, objective, Settings(), world)
    for _ in range(2):
        engine.phases.forget()
        engine.phases.begin()
        start = time.perf_counter()
        engine.train_step(Share([torch.randn(2, 2)], [2], 4))
        whole = time.perf_counter() - start
    found = engine.phases.seconds()
    assert sum(found.values()) == pytest.approx(whole, abs=3e-2)
    waiting = found["forward"] if world.rank == 1 else found["communication"]
    assert waiting > 0.08, found


def test_I1_waiting_for_another_rank_is_communication(in_ranks):
    in_ranks(2, wait_for_a_slow_rank)
