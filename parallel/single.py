"""One process, the whole model, the whole batch: what all others must agree with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from parallel import naming
from parallel.errors import UsageError
from parallel.modes import autocasting, discarding, evaluating, keeping_buffers
from parallel.phases import Phases
from parallel.strategy import (
    Batch,
    Engine,
    EngineState,
    Objective,
    Outcome,
    Share,
    StepResult,
    Strategy,
    Work,
)
from parallel.update import Norm, Update

MIXED_WEIGHTS = (
    "the task's loss has a weight with some batches and none with others; return "
    "(loss, weight) always, or never"
)


class TrainingLoss(nn.Module):
    """The task's loss as a module's forward, so that a wrapper sees all that the task calls."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self._loss = model, objective.loss

    def forward(self, batch: Batch) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """Return loss, weight and metrics: a tuple, whose tensors a wrapper can find."""
        outcome = self._loss(self.model, batch)
        return outcome.loss, outcome.weight, dict(outcome.metrics)


class Whole(Engine):
    """The whole model in this process; ``replicas`` of it share each global batch."""

    def __init__(self, work: Work) -> None:
        settings, world = work.settings, work.world
        self.world, self.objective = world, work.objective
        if settings.precision == "float64":
            work.model.double()  # .to(dtype) would cut complex parameters to their real part
        naming.separate_buffers(work.model)
        self.module = self.take(work.model)
        self.replicas = 1
        self.phases = Phases(world.device)
        self.tail = "backward"  # the phase that ends when backward returns
        self.optimizers = work.make_optimizer(self.module)
        naming.check(self.module, self.optimizers)
        self.update = Update(self.optimizers, settings, world.device)
        self._parameters = list(self.module.parameters())
        self._weights: list[Tensor] = []  # of this step's rounds, where the task weighs them
        self._weighs: bool | None = None  # whether the task does: its first batch tells
        self._whole: Callable[[], Tensor] | None = None  # waits for their sum over all ranks
        if settings.compile:
            self.module.compile()
        self.forward: nn.Module = TrainingLoss(self.module, work.objective)
        self._autocast = autocasting(settings.precision, world.device)

    def take(self, model: nn.Module) -> nn.Module:
        """Return ``model`` as it is trained here, before anything refers to its parameters."""
        return model.to(self.world.device)

    def train_step(self, share: Share) -> StepResult:
        """Return what one optimizer step said; see ``Engine``."""
        for parameter in self._parameters:
            parameter.grad = None
        self._weights, self._whole = [], None
        outcomes = []
        rounds = len(share.batches)
        for i, (batch, count) in enumerate(zip(share.batches, share.counts, strict=True), 1):
            with self.round(i == rounds):
                outcomes.append(self._forward_backward(batch, count, share.total, rounds))
        self.backward_done()
        norm, skipped = self.update.apply(self.agree)
        self.phases.end("optimizer")
        return StepResult(outcomes, norm, skipped)

    def round(self, last: bool) -> AbstractContextManager[Any]:
        """Return the context for forward and backward of one round of accumulation."""
        return nullcontext()

    def backward_done(self) -> None:
        """Look at the gradients of the whole step, reduced and not yet applied."""

    def _forward_backward(self, batch: Batch, count: int, total: int, rounds: int) -> Outcome:
        """Add one round's gradients; return what it said, with its weight."""
        with keeping_buffers(self.module) if not count else nullcontext():
            with self._autocast():
                loss, weight, metrics = self.forward(batch)
            check_loss(loss)
            self._agree_on_weighing(weight is not None)
            self.phases.end("forward")
            on_gpu = isinstance(weight, Tensor) and weight.is_cuda  # reading it there would wait
            scale = count * self.replicas / total if weight is None else weight
            empty = not count or not (on_gpu or float(scale))
            if weight is not None:
                self._weigh(0.0 if empty else weight, rounds)
            self._backward(loss, scale, empty, weight if on_gpu else None)
            self.phases.end(self.tail)
        weight = 0.0 if empty else float(count) if weight is None else weight
        return Outcome(loss.detach(), weight, {k: v.detach() for k, v in metrics.items()})

    def _backward(
        self, loss: Tensor, scale: Tensor | float, empty: bool, select: Tensor | None
    ) -> None:
        """Add the gradients of scale x loss, or zeros if ``empty`` or where ``select`` is 0."""
        loss = self.update.scaler.scale(loss)
        if isinstance(scale, Tensor) and not empty:
            given = scale.to(loss)
        else:  # filled on the device: a copy from the host would wait
            number = 1.0 if empty or isinstance(scale, Tensor) else scale
            given = torch.full((), number, dtype=loss.dtype, device=loss.device)
        discard = empty or select is not None
        with self.discarding(select, empty) if discard else nullcontext():
            loss.backward(given)

    def discarding(self, select: Tensor | None, empty: bool) -> AbstractContextManager[None]:
        """Return the context in which backward adds zeros if ``empty``, or where ``select`` is."""
        return discarding(self.module, select, empty)

    def _agree_on_weighing(self, weighs: bool) -> None:
        """Refuse a weight with some batches and none with others: the ranks would part ways."""
        agreed = self._weighs == weighs
        if self._weighs is None:
            self._weighs = weighs
            agreed = len(set(self.world.gather_objects(weighs))) == 1
        if not agreed:
            raise UsageError(MIXED_WEIGHTS)

    def _weigh(self, weight: Tensor | float, rounds: int) -> None:
        """Take in a round's weight; add up over all ranks from the last one on, during backward."""
        self._weights.append(torch.as_tensor(weight, dtype=torch.float64).to(self.world.device))
        if len(self._weights) == rounds:
            self._whole = self.world.sum_later(torch.stack(self._weights).sum())

    def agree(self, norm: Norm) -> tuple[Norm, Norm | None]:
        """Return the norm of all gradients, and what makes weighted sums the weighted mean."""
        if self._whole is None:  # samples are the weight, and known beforehand
            return norm, None
        whole = self._whole()
        return norm, torch.where(whole > 0, self.replicas / whole, 0.0)  # nothing has no gradient

    def evaluate(self, batches: Iterable[tuple[Batch, int]]) -> list[Outcome]:
        """Return what the task says of each batch; see ``Engine``."""
        self.agree_buffers()
        outcomes = []
        with evaluating(self.module), self._autocast():
            for batch, count in batches:
                said = self.objective.evaluate(self.module, batch)
                outcomes.append(replace(said, weight=float(count)) if said.weight is None else said)
        return outcomes

    def agree_buffers(self) -> None:
        """Make buffers alike on all replicas: they are rank 0's. Collective."""

    def state(self, compare: bool = False) -> EngineState:
        """Return the model and the optimizers by the model's own names; see ``Engine``."""
        if compare:
            self.check_agreement(buffers=True)
        else:
            self.agree_buffers()
        return naming.state(self.module, self.optimizers, self.update.scaler)

    def load(self, state: EngineState) -> None:
        """Go on from ``state``; see ``Engine``."""
        naming.load(state, self.module, self.optimizers, self.update.scaler)


def check_loss(loss: Tensor) -> None:
    """Raise ``UsageError`` where nothing can be learnt from ``loss``."""
    if loss.ndim:
        raise UsageError(
            f"the task's loss has shape {list(loss.shape)}, wanted the batch's mean: 0-d; "
            "end it by .mean(), or return (loss, weight)"
        )
    if not loss.requires_grad:
        raise UsageError(
            "the task's loss does not depend on any trainable parameter; "
            "is it computed under no_grad, or is the model frozen?"
        )


@dataclass(frozen=True)
class Single(Strategy):
    """Train in one process."""

    def check(self, world_size: int) -> None:
        """Refuse more processes than one."""
        refuse_many("single", world_size)

    def start(self, work: Work) -> Engine:
        """Return the whole model at work on this process's device."""
        return Whole(work)


def refuse_many(name: str, world_size: int) -> None:
    """Raise ``UsageError`` where a strategy of one process meets several."""
    if world_size > 1:
        raise UsageError(
            f"strategy {name!r} trains in one process, but {world_size} were started; "
            "use strategy.name=ddp, or --nproc_per_node=1"
        )
