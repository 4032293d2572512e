"""Microbatches on their way through one stage, forward and backward, in the schedule's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from parallel.errors import UsageError
from parallel.phases import Phases
from parallel.pipeline.link import Links
from parallel.pipeline.mesh import Mesh
from parallel.pipeline.schedule import Op
from parallel.pipeline.stage import Held, Stage
from parallel.single import MIXED_WEIGHTS, check_loss
from parallel.strategy import Batch, Objective, Outcome, Share

Context = Callable[[], AbstractContextManager[Any]]


@dataclass
class Passage:
    """What one stage does with microbatches; scale: of the loss, for float16."""

    mesh: Mesh
    stage: Stage
    links: Links
    objective: Objective
    phases: Phases
    autocast: Context
    scale: Callable[[Tensor], Tensor]
    weighs: bool | None = None  # whether the task does; known on the last stage
    weights: list[float] = field(default_factory=list)  # of this step's microbatches
    counted: int = 0  # microbatches of this step that had weight, as far as this stage is told
    _held: dict[int, Held] = field(default_factory=dict)
    _said: dict[int, tuple[Tensor, float]] = field(default_factory=dict)  # loss, and its weight
    _outcomes: dict[int, Outcome] = field(default_factory=dict)

    def train(self, share: Share, ops: Iterable[Op]) -> list[Outcome]:
        """Add the gradients of ``share``'s microbatches; on the last stage, return their losses."""
        self.weights, self.counted = [], 0
        self._held, self._said, self._outcomes = {}, {}, {}
        for kind, microbatch in ops:
            if kind == "F":
                self._forward(share, microbatch)
            elif self.mesh.is_last:
                self._backward_of_loss(microbatch)
            else:
                self._backward(microbatch)
        self.links.settle()
        return [self._outcomes[at] for at in sorted(self._outcomes)]

    def judge(self, batches: Iterable[tuple[Batch, int]]) -> list[Outcome]:
        """Return what the last stage says of each batch; elsewhere nothing."""
        outcomes = []
        ask = self.objective.evaluate_outputs
        for batch, count in batches:
            value = self.stage(self._take(batch, Held()))
            if self.links.outputs is not None:
                self.links.outputs.send(value)
            elif ask is not None:
                said = ask(value, batch)
                outcomes.append(replace(said, weight=float(count)) if said.weight is None else said)
        self.links.settle()
        return outcomes

    def _take(self, batch: Batch, held: Held) -> Any:
        """Return what this stage's first layer gets."""
        if self.links.inputs is None:
            return self.objective.inputs(batch) if self.objective.inputs is not None else batch
        received = self.links.inputs.receive()
        self.phases.end("communication")
        if received is None:
            raise RuntimeError("a stage was sent nothing where a microbatch was due")
        return self.stage.receive(received, held)

    def _forward(self, share: Share, microbatch: int) -> None:
        held = self._held[microbatch] = Held()
        batch = share.batches[microbatch]
        with self.autocast():
            value = self.stage(self._take(batch, held))
            if self.links.outputs is not None:
                held.outputs = self.stage.edges(value)
                self.links.outputs.send(value)
            else:
                self._judge(value, batch, microbatch, share)
        self.phases.end("forward")

    def _judge(self, value: Any, batch: Batch, microbatch: int, share: Share) -> None:
        """Take in the loss of the last stage's outputs."""
        ask = self.objective.loss_of_outputs
        if ask is None:
            return
        said = ask(value, batch)
        check_loss(said.loss)
        count, weight = share.counts[microbatch], said.weight
        if self.weighs is None:
            self.weighs = weight is not None
        elif self.weighs != (weight is not None):
            raise UsageError(MIXED_WEIGHTS)
        # Whether it is 0 goes to the other stages, so that on a GPU this waits for the weight.
        number = float(count) if weight is None else float(weight)
        self.weights.append(number)
        scale = number if self.weighs else number / share.total
        self._said[microbatch] = said.loss, scale
        metrics = {name: value.detach() for name, value in said.metrics.items()}
        self._outcomes[microbatch] = Outcome(said.loss.detach(), number, metrics)

    def _backward_of_loss(self, microbatch: int) -> None:
        loss, scale = self._said.pop(microbatch)
        held = self._held.pop(microbatch)
        if scale:  # of a microbatch without weight nothing is computed: it may be NaN
            self.scale(loss).backward(torch.full((), scale, dtype=loss.dtype, device=loss.device))
        self.phases.end("backward")
        self._hand_back(held, counts=scale > 0)

    def _backward(self, microbatch: int) -> None:
        held = self._held.pop(microbatch)
        source = self.links.gradients
        gradients: Sequence[Tensor | None] | None = []
        if held.outputs and source is not None:
            gradients = source.value()
            self.phases.end("communication")
            if gradients is not None:
                self.stage.backward(held, gradients)
        self.phases.end("backward")
        self._hand_back(held, counts=gradients is not None)

    def _hand_back(self, held: Held, *, counts: bool) -> None:
        """Send the stage before the gradients of what it sent.

        counts: False if the microbatch has no weight, which is told by sending nothing.
        """
        self.counted += counts
        back = self.links.back
        if back is None or not held.wants:
            return
        if counts:
            back.send(held.caught or [None] * held.wants)
        else:
            back.send_nothing()
