"""The strategies that cut a model into stages, and their keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from parallel.errors import UsageError, require_at_least, require_one_of
from parallel.imagined import stand_in
from parallel.modes import autocasting
from parallel.pipeline.alone import devices
from parallel.pipeline.engine import Course, Pipelined
from parallel.pipeline.holding import split_layers
from parallel.pipeline.layers import Layers, layers
from parallel.pipeline.likeness import refuse_another_model
from parallel.pipeline.link import Links, connect
from parallel.pipeline.materialize import materialize
from parallel.pipeline.mesh import Mesh
from parallel.pipeline.plan import Plan, Terms, choose, given
from parallel.pipeline.profile import MEASURES, LayerCost, profile
from parallel.pipeline.schedule import KINDS
from parallel.pipeline.split import cuts_of
from parallel.pipeline.unbuilt import unbuilt
from parallel.pipeline.wire import measure
from parallel.strategy import Batch, Engine, Objective, Rehearsal, Strategy, Work
from parallel.world import World

NO_OUTPUTS = (
    "a model that is cut computes its loss on its last stage, from the outputs alone; define "
    "loss_of_outputs(self, outputs, batch) in the task, and inputs(self, batch) where the model's "
    "input is not batch[0]"
)


@dataclass(frozen=True)
class ModelParallel(Strategy):
    """Cut the model over devices, one batch at a time: all but one wait. Known as the naive split.

    stages: devices a replica of the model is spread over. split: ``auto``, or for each stage but
    the first the number or name of its first layer. balance: what stages get equal parts of.
    memory_limit_gib: of each device, for ``auto``. checkpoint_every: so many layers at a time are
    computed again in backward, instead of kept; 0: none. build: ``whole``, as one process does, or
    ``stage``, where no process could hold all of it.
    """

    stages: int = 2
    split: str | Sequence[int | str] = "auto"
    balance: str = "time"  # time | flops | params
    memory_limit_gib: float | None = None
    checkpoint_every: int = 0
    build: str = "whole"  # whole | stage

    def __post_init__(self) -> None:
        for name, least in (("stages", 1), ("checkpoint_every", 0)):
            require_at_least(f"strategy.{name}", getattr(self, name), least)
        require_one_of("strategy.balance", self.balance, MEASURES)
        require_one_of("strategy.build", self.build, ("whole", "stage"))
        limit, split = self.memory_limit_gib, self.split
        if limit is not None and not 0 < limit < math.inf:
            raise UsageError(f"strategy.memory_limit_gib: wanted a size above 0, met {limit:g}")
        kinds = {type(each) for each in split} if isinstance(split, list | tuple) else {None}
        if split != "auto" and not kinds <= {int, str}:
            raise UsageError(
                f"strategy.split: wanted auto, or the first layer of each stage but the first by "
                f"number or name, such as [7] or [layers.7]; met {split!r}"
            )

    @property
    def course(self) -> Course:
        """How a step goes through the stages: all of it at once."""
        return Course("gpipe", 1, 0, self.checkpoint_every)

    def replicas(self, world: World) -> int:
        """Return how many whole models there are."""
        return world.size // self.stages

    def reads(self, world: World) -> bool:
        """Whether this stage needs inputs, or what the loss compares outputs with."""
        mesh = Mesh(world, self.stages)
        return mesh.is_first or mesh.is_last

    def check(self, world_size: int) -> None:
        """Refuse numbers of processes that do not make whole replicas."""
        if world_size < self.stages:
            raise UsageError(
                f"strategy.stages={self.stages} wants at least {self.stages} processes, but "
                f"{world_size} {'was' if world_size == 1 else 'were'} started; use "
                f"--nproc_per_node={self.stages}"
                + (f", or strategy.stages={world_size}" if world_size > 1 else "")
            )
        if world_size % self.stages:
            raise UsageError(
                f"strategy.stages={self.stages} wants a multiple of {self.stages} processes, one "
                f"for each stage of each replica, but {world_size} were started; use "
                f"--nproc_per_node={world_size // self.stages * self.stages}"
            )

    def construct(self, make: Callable[[], nn.Module]) -> nn.Module:
        """Return the model; where only stages are built, one without memory."""
        return unbuilt(make) if self.build == "stage" else make()

    def check_objective(self, objective: Objective) -> None:
        """Refuse a task that has no loss of outputs."""
        if objective.loss_of_outputs is None:
            raise UsageError(NO_OUTPUTS)

    def start(self, work: Work) -> Engine:
        """Return this process's stage at work."""
        self.check(work.world.size)
        self.check_objective(work.objective)
        found = layers(work.model)
        if work.settings.precision == "float64":
            work.model.double()  # before layers are measured
        if not isinstance(self.split, str):
            cuts_of(self.split, [name for name, _ in found], self.stages)
        mesh, course = Mesh(work.world, self.stages), self.course
        links = connect(mesh, 1 + course.in_flight(mesh))
        cuts = self._remembered(found, work)
        notices = [f"cut before {', '.join(map(str, cuts))}, as the run was before"] if cuts else []
        if not cuts:
            plan = self._plan(found, work, links)
            cuts, notices = plan.cuts, plan.lines()
        stages = split_layers(found, cuts)
        self._materialize(work, stages[mesh.stage])
        engine = Pipelined(work, stages, course, links)
        engine.remembers = {"layers": len(found), "cuts": list(cuts)}
        engine.notices = notices
        return engine

    def _materialize(self, work: Work, own: Sequence[nn.Module]) -> None:
        """Give this stage memory where the model has none; values first have their own dtype."""
        if self.build == "stage":
            materialize(work.model, own, work.world.device)
            if work.settings.precision == "float64":
                for layer in own:
                    layer.double()

    def rehearse(self, work: Work) -> Rehearsal:
        """Yield the engine of each stage. Nothing is timed: time is cut by arithmetic."""
        self.check(work.world.size)
        self.check_objective(work.objective)
        found = layers(stand_in(work.model, work.settings.precision, lambda _: False))
        counted = replace(
            self,
            split=self._remembered(found, work) or self.split,
            balance="flops" if self.balance == "time" else self.balance,
        )
        plan = counted._choose(found, work, _example(work))
        return devices(work, plan.cuts, plan.busy, self.course)

    def _remembered(self, found: Layers, work: Work) -> tuple[int, ...]:
        """Return an earlier cut: measured anew, another would change noise and rounding."""
        before = work.remembered
        cuts = tuple(before.get("cuts", ()))
        is_same = before.get("layers") == len(found) and len(cuts) == self.stages - 1
        return cuts if self.split == "auto" and is_same else ()

    def _plan(self, found: Layers, work: Work, links: Links) -> Plan:
        """Return the cut, as rank 0 found it. Collective."""
        mesh = Mesh(work.world, self.stages)
        wire = None
        if self.balance == "time" and mesh.stages > 1 and mesh.replica == 0 and mesh.stage < 2:
            wire = measure(links, mesh.stage == 1, work.world.device)
        plan, problem = None, ""
        if work.world.is_main:
            try:
                batch = _example(work)
                plan = self._choose(found, work, batch, wire)
                refuse_another_model(found, work, batch)
            except UsageError as error:  # told by all ranks, which else would wait for a plan
                problem = str(error)
        plan, problem = work.world.share((plan, problem))
        if plan is None or problem:
            raise UsageError(problem)
        return plan

    def _choose(
        self,
        found: Layers,
        work: Work,
        batch: Batch | None,
        wire: tuple[float, float] | None = None,
    ) -> Plan:
        device = work.world.device
        ask = work.objective.inputs
        given_first = batch if batch is None or ask is None else ask(batch)
        with autocasting(work.settings.precision, device)():
            costs = profile(found, given_first, self.balance, device)
        return self.plan(costs, self.course.microbatches, wire)

    def plan(
        self,
        costs: Sequence[LayerCost],
        microbatches: int,
        wire: tuple[float, float] | None = None,
    ) -> Plan:
        """Return the cut for layers that cost so much; wire: a message's latency, and bytes/s."""
        course = self.course
        latency_s, bytes_per_s = wire or (0.0, None)
        terms = Terms(
            self.stages,
            microbatches,
            course.schedule,
            course.ahead,
            self.balance,
            self.memory_limit_gib,
            bytes_per_s,
            latency_s,
        )
        if isinstance(self.split, str):
            return choose(costs, terms)
        return given(costs, terms, self.split)


@dataclass(frozen=True)
class Pipeline(ModelParallel):
    """Cut the model over devices, and keep them busy with parts of each batch.

    microbatches: parts of a replica's batch, in each of train.accumulate rounds. schedule: 1f1b,
    or gpipe, which takes as long and holds all microbatches' activations. ahead: microbatches that
    a stage holds beyond 1f1b's least, so that messages travel while it computes; 0: least memory.
    """

    microbatches: int = 8
    schedule: str = "1f1b"  # 1f1b | gpipe
    ahead: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("strategy.microbatches", self.microbatches, 1)
        require_at_least("strategy.ahead", self.ahead, 0)
        require_one_of("strategy.schedule", self.schedule, KINDS)

    @property
    def course(self) -> Course:
        """How a step goes through the stages."""
        return Course(self.schedule, self.microbatches, self.ahead, self.checkpoint_every)

    def rounds(self, accumulate: int) -> int:
        """Return the number of microbatches in a step."""
        return accumulate * self.microbatches


def _example(work: Work) -> Batch | None:
    """Return a first microbatch; None where there is none."""
    return work.example() if work.example is not None else None
