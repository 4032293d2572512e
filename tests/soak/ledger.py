"""The digits, trained by a task that writes down which samples entered which optimizer step.

Each rank appends a line a step to ``ledger-RANK.jsonl`` in the working folder, and has it out of
the process before the step can be saved: what a kill leaves there is what was trained.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from launch.task import Task
from launch.tasks.digits import Digits

# Seconds by which a step, a batch of an evaluation and a save are drawn out, so that a random
# moment falls into each; from the environment, as the unbroken run need not be slow to be the same.
STEP_S, EVALUATION_S, SAVE_S = map(float, os.environ.get("SOAK_PACE", "0 0 0").split())


@dataclass
class LedgerDigits(Digits):
    """The built-in task; ballast_mb: of what is saved besides, so that files take time to write."""

    width: int = 4
    ballast_mb: int = 8

    def __post_init__(self):
        self.done = 0
        self.attempt = ""
        self.samples: list[int] = []

    def datasets(self):
        return {
            split: TensorDataset(*part.tensors, torch.arange(len(part)))
            for split, part in super().datasets().items()
        }

    def loss(self, model, batch):
        if torch.is_grad_enabled():
            self.samples += batch[2].tolist()
            time.sleep(STEP_S)
        return super().loss(model, batch)

    def evaluate(self, model, batch):
        time.sleep(EVALUATION_S)
        return super().evaluate(model, batch)

    def after_step(self, context):
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.done += 1
        self.attempt = self.attempt or agree_on_a_name(size)
        entry = {
            "attempt": self.attempt,
            "world_size": size,
            "step": context.step,
            "epoch": context.epoch,
            "samples": self.samples,
        }
        self.samples = []
        with Path(f"ledger-{rank}.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def state_dict(self):
        time.sleep(SAVE_S)
        return {"done": self.done, "ballast": torch.full((self.ballast_mb * 2**18,), self.done)}

    def load_state_dict(self, state):
        self.done = state["done"]


class Ballast(nn.Module):
    """Passes on what it is given, and has so many bytes to save."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.register_buffer("ballast", torch.zeros(megabytes * 2**18))

    def forward(self, value):
        return value


class LedgerStages(LedgerDigits):
    """The same for a model that is cut: what is saved besides is its own, and grows in no step."""

    state_dict, load_state_dict = Task.state_dict, Task.load_state_dict

    def model(self):
        return nn.Sequential(*super().model(), Ballast(self.ballast_mb))

    def loss_of_outputs(self, outputs, batch):
        if torch.is_grad_enabled():
            self.samples += batch[2].tolist()
            time.sleep(STEP_S / 8)  # it has eight microbatches
        return super().loss_of_outputs(outputs, batch)

    def evaluate_outputs(self, outputs, batch):
        time.sleep(EVALUATION_S / 8)
        return super().loss_of_outputs(outputs, batch)


def agree_on_a_name(size: int) -> str:
    """Return a name that the ranks of this attempt share, and no other attempt has."""
    name = [f"{time.time_ns()}-{os.getpid()}"]
    if size > 1:
        dist.broadcast_object_list(name, src=0)
    return name[0]
