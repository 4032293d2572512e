"""A pipeline at work: this process's stage of this process's replica."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parallel import naming
from parallel.agreement import differing, refuse_unlike
from parallel.divergence import Start
from parallel.errors import DisagreementError, UsageError
from parallel.modes import autocasting, evaluating
from parallel.phases import Phases
from parallel.pipeline.holding import Holding, Stages
from parallel.pipeline.layers import tensors_of
from parallel.pipeline.link import Links
from parallel.pipeline.mesh import Mesh
from parallel.pipeline.passage import Passage
from parallel.pipeline.reduction import Reduction
from parallel.pipeline.schedule import Op, in_flight, order
from parallel.pipeline.stage import Stage
from parallel.single import MIXED_WEIGHTS
from parallel.strategy import Batch, Engine, EngineState, Outcome, Share, StepResult, Work
from parallel.update import Norm, Update
from parallel.world import World


@dataclass(frozen=True)
class Course:
    """How a step goes through the stages: the strategy's keys of these names."""

    schedule: str = "1f1b"
    microbatches: int = 8
    ahead: int = 0
    checkpoint_every: int = 0

    def in_flight(self, mesh: Mesh) -> int:
        """Return how many microbatches this stage holds at most."""
        return in_flight(self.schedule, mesh.stages, mesh.stage, self.microbatches, self.ahead)


NO_EVALUATION = (
    "the task evaluates in a way of its own, by evaluate(model, batch), and a stage has no whole "
    "model; define evaluate_outputs(outputs, batch), or have no split but train"
)


class Pipelined(Engine):
    """The stage of this process; the model's other layers are on the meta device."""

    is_split = True

    def __init__(self, work: Work, stages: Stages, course: Course, links: Links) -> None:
        world, settings, model = work.world, work.settings, work.model
        self.mesh, self.world, self.course = Mesh(world, len(stages)), world, course
        refuse_unlike(model, world)
        own = stages[self.mesh.stage]
        for layer in own:
            layer.to(world.device)
            naming.separate_buffers(layer)
        self.module, self.phases = model, Phases(world.device)
        self.holding = Holding(model, stages, self.mesh.stage)
        self.optimizers = self.holding.make(work.make_optimizer)
        self.holding.forget_others()
        self.update = Update(self.optimizers, settings, world.device)
        self._connect(work, own, links)
        if settings.compile:
            for layer in own:
                layer.compile()

    def _connect(self, work: Work, own: Sequence[nn.Module], links: Links) -> None:
        """Meet those that hold the same parameters, and start with their values. Collective."""
        mesh, course, settings = self.mesh, self.course, work.settings
        links.post_ahead()
        self.passage = Passage(
            mesh,
            Stage(own, course.checkpoint_every, self._called(own[-1])),
            links,
            work.objective,
            self.phases,
            autocasting(settings.precision, self.world.device),
            self.update.scaler.scale,
        )
        self.peers = mesh.peers()
        held = list(dict.fromkeys(tensor for layer in own for tensor in tensors_of(layer)))
        self.peers.broadcast(held)
        self.owners = self._meet_owners()
        parameters = [tensor for tensor in held if isinstance(tensor, nn.Parameter)]
        self.reduction = Reduction(parameters, self.peers, self.owners)
        self._parameters = parameters  # any may be frozen, or trained, from some step on
        self._start = Start(self.module)
        self._weighs: bool | None = None  # whether the task does: the first step tells all ranks

    def _called(self, layer: nn.Module) -> str:
        name = next(name for name, module in self.module.named_modules() if module is layer)
        return f"layer {name!r}, a {type(layer).__name__},"

    def _meet_owners(self) -> list[tuple[nn.Parameter, World]]:
        """Return this stage's tied parameters, each with those that hold it. Collective."""
        found = []
        for parameter, stages in self.holding.tied:
            world = self.world.among([self.mesh.holders(stages)])
            if self.mesh.stage in stages:
                world.broadcast([parameter])
                found.append((parameter, world))
                if stages[0] != self.mesh.stage:
                    self.update.elsewhere.add(parameter)
        return found

    def train_step(self, share: Share) -> StepResult:
        """Return what one optimizer step said: of its losses only the last stage knows."""
        for parameter in self._parameters:
            parameter.grad = None
        has_samples = any(share.counts)  # a borrowed share is left alone: it adds nothing
        ops = self._ops(len(share.batches)) if has_samples else []
        outcomes = self.passage.train(share, ops)
        if not self.passage.counted:
            self._count_nothing()
        self.reduction.add_up(self._name)
        self.phases.end("communication")
        norm, skipped = self.update.apply(self.agree)
        self.phases.end("optimizer")
        return StepResult(outcomes, norm, skipped)

    def _ops(self, microbatches: int) -> list[Op]:
        """Return what to compute: gpipe, which holds all it began, in flights of a limited size."""
        course, mesh = self.course, self.mesh
        kind, ahead = course.schedule, course.ahead
        size = microbatches if kind == "1f1b" else course.microbatches
        return [
            Op(name, first + at)
            for first in range(0, microbatches, size)
            for name, at in order(
                kind, mesh.stages, mesh.stage, min(size, microbatches - first), ahead
            )
        ]

    def _count_nothing(self) -> None:
        """Make gradients 0, as those of batches without weight are."""
        for parameter in self._parameters:
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    def _name(self, parameter: nn.Parameter) -> str:
        return next(name for name, p in self.module.named_parameters() if p is parameter)

    def agree(self, norm: Norm) -> tuple[Norm, Norm | None]:
        """Return the norm over all stages, and what makes weighted sums the mean. Collective."""
        passage, device = self.passage, self.world.device
        own = torch.as_tensor(norm, dtype=torch.float64, device=device)
        said = passage.weights if passage.weighs else []
        numbers = [sum(said), float(passage.weighs is True), float(passage.weighs is False)]
        row = torch.cat([own.square().reshape(1) / self.mesh.replicas, _numbers(numbers, own)])
        row = self.world.sum(row)
        if self._weighs is None:  # alike on all ranks from here on
            weighs, weighs_not = row[2:].tolist()
            if weighs and weighs_not:
                raise UsageError(MIXED_WEIGHTS)
            self._weighs = passage.weighs = bool(weighs)
        whole = row[0].sqrt() if isinstance(norm, Tensor) else math.sqrt(row[0].item())
        return whole, torch.where(row[1] > 0, 1 / row[1], 0.0) if self._weighs else None

    def check_evaluation(self) -> None:
        """Refuse a task that judges the whole model alone."""
        if self.passage.objective.evaluate_outputs is None:
            raise UsageError(NO_EVALUATION)

    def evaluate(self, batches: Iterable[tuple[Batch, int]]) -> list[Outcome]:
        """Return what the last stage says of each batch; nothing on the others."""
        self.check_evaluation()
        self._agree_buffers()
        with evaluating(self.module), self.passage.autocast():
            return self.passage.judge(batches)

    def _agree_buffers(self) -> None:
        """Make buffers replica 0's. Collective over those that hold this stage."""
        self.peers.broadcast([b for b in self.module.buffers() if not b.is_meta])

    def check_agreement(self, buffers: bool = False) -> None:
        """Compare replicas of stages, and tied parameters, bit for bit; see ``Engine``."""
        if buffers:
            self._agree_buffers()
        if self.mesh.replicas == 1 and not self.holding.tied:
            return
        named = [*self.module.named_parameters(), *(self.module.named_buffers() if buffers else ())]
        held = {name: tensor for name, tensor in named if not tensor.is_meta}
        found = differing(held, self.peers)
        for parameter, owners in self.owners:
            found |= differing({self._name(parameter): parameter}, owners)
        everywhere: dict[str, list[int]] = {}
        for each in self.world.gather_objects(found):
            everywhere |= each
        if everywhere:
            raise DisagreementError(self._start.explain(self.module, everywhere, self.world))

    def state(self, compare: bool = False) -> EngineState:
        """Return this process's part of the model and its optimizers; see ``Engine``."""
        if compare:
            self.check_agreement(buffers=True)
        else:
            self._agree_buffers()
        return self.holding.state(
            self.optimizers, self.update.scaler, self.world, writes=self.mesh.replica == 0
        )

    def load(self, state: EngineState) -> None:
        """Go on from this process's part of ``state``; see ``Engine``."""
        self.holding.load(state, self.optimizers, self.update.scaler)


def _numbers(numbers: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=like.dtype).to(like.device, non_blocking=True)
