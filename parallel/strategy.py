"""What a way of training in parallel must answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from parallel.imagined import stand_in
from parallel.phases import Phases
from parallel.world import World

MakeOptimizers = Callable[[nn.Module], list[Optimizer]]  # of a model on its device
Batch = Any  # opaque: tensor, tuple, dict, object with .to(); only the task looks inside


@dataclass(frozen=True)
class Outcome:
    """What a task says of one batch.

    loss: 0-d, the mean over the batch's samples, or over its weight where that is given.
    weight: 0-d tensor or number, e.g. tokens; None where the samples are the weight.
    metrics: name -> [n] (one value a sample or token) or 0-d (a mean with the loss's weight).
    """

    loss: Tensor
    weight: Tensor | float | None = None
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Objective:
    """The task's two questions to a model; either may call the model in any way it likes.

    The others are asked where a model is cut: what its first layer gets, and the same two
    questions to its last layer's outputs. None: the task does not answer them.
    """

    loss: Callable[[nn.Module, Batch], Outcome]
    evaluate: Callable[[nn.Module, Batch], Outcome]
    inputs: Callable[[Batch], Any] | None = None
    loss_of_outputs: Callable[[Any, Batch], Outcome] | None = None
    evaluate_outputs: Callable[[Any, Batch], Outcome] | None = None


@dataclass(frozen=True)
class Settings:
    """What every engine does alike, whatever its strategy."""

    precision: str = "float32"  # float32 | float64 | bfloat16 | float16
    clip_norm: float | None = None
    compile: bool = False


@dataclass(frozen=True)
class Work:
    """What a strategy is put to: a model, how it is updated and judged, and the processes.

    example: returns one batch of training on the device, the first that replica 0 gets; it, or
        what it returns, is None where there is none to try a model on.
    remembered: ``Engine.remembers`` of the run that this one goes on from.
    """

    model: nn.Module
    make_optimizer: MakeOptimizers
    objective: Objective
    settings: Settings
    world: World
    example: Callable[[], Batch | None] | None = None
    remembered: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Share:
    """One replica's part of one global batch, on the replica's device.

    batches: one for each round of accumulation that has samples, never none.
    counts: samples in each; 0 marks a borrowed batch: it is computed, so that the collective
        part runs, and its gradients and buffer changes are discarded.
    total: samples in the whole global batch, over all replicas and rounds.
    rounds: no replica has more batches of this global batch, which matters where ranks go
        ``in_step``; 0: all have as many as this one.
    """

    batches: Sequence[Batch]
    counts: Sequence[int]
    total: int
    rounds: int = 0


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step said on this replica: detached, unreduced, on the device.

    outcomes: one a round, each with its weight; ``sums`` adds them up when they are wanted.
    grad_norm: of the reduced gradients before clipping; alike on all replicas.
    skipped: whether the gradients were not finite, so that nothing was updated.
    """

    outcomes: Sequence[Outcome]
    grad_norm: Tensor | float
    skipped: Tensor | bool


@dataclass
class EngineState:
    """All that training changed, under the model's own names, whatever the strategy.

    model: parameters and buffers. optimizer: "0/name/slot" -> tensor.
    groups: for each optimizer its parameter groups, parameters by name, and its plain numbers.
    scaler: of float16, else empty.
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    groups: list[dict[str, Any]]
    scaler: dict[str, Any]


class Engine(ABC):
    """A strategy at work on this process. Every rank calls every method, in the same order."""

    module: nn.Module  # the task's own model, unwrapped
    optimizers: list[Optimizer]
    phases: Phases
    is_split: bool = False  # whether each rank holds another part of the model
    remembers: Mapping[str, Any] = MappingProxyType({})  # plain values, to go on with all alike
    in_step: bool = False  # whether all ranks compute as many batches, if need be borrowed ones
    notices: Sequence[str] = ()  # what a person should know of how it runs

    @abstractmethod
    def train_step(self, share: Share) -> StepResult:
        """Update the parameters by one optimizer step on this replica's share of a global batch.

        The gradient is the weighted mean over the whole global batch, however it is shared out.
        """

    @abstractmethod
    def evaluate(self, batches: Iterable[tuple[Batch, int]]) -> list[Outcome]:
        """Judge this replica's (batch, samples) pairs in evaluation mode, one outcome for each.

        No gradient is kept; the module is afterwards in the mode it was in. 0 samples: where ranks
        go ``in_step``, a borrowed batch, which has no outcome.
        """

    def check_evaluation(self) -> None:  # noqa: B027 - a whole model can be judged
        """Raise ``UsageError`` where ``evaluate`` would, before anything is trained."""

    def check_agreement(self, buffers: bool = False) -> None:  # noqa: B027 - one replica agrees
        """Raise ``DisagreementError`` where replicas' parameters differ, be it in one bit.

        buffers: make them rank 0's, as for ``state``, and compare them too. The message, alike on
        all ranks, names what differs, where, and why. Collective.
        """

    def awaited(self) -> int:
        """Return the bytes of messages asked for that come when this rank has nothing to do."""
        return 0

    @abstractmethod
    def state(self, compare: bool = False) -> EngineState:
        """All that is needed to go on: references, not copies, and buffers agreed. Collective.

        Where the engine ``is_split``, each rank returns the whole tensors that it is to save, none
        of them another rank's too; groups and scaler are complete on every rank. Else rank 0's is
        what counts. compare: raise ``DisagreementError`` first where replicas differ.
        """

    @abstractmethod
    def load(self, state: EngineState) -> None:
        """Go on from ``state``. Raises ``UsageError`` where names or shapes differ."""


Rehearsal = Generator[Engine, None, None]  # see ``Strategy.rehearse``


class Strategy(ABC):
    """One way to spread a training step over processes. Subclass as a frozen dataclass.

    Its fields are its configuration keys; ``start`` is what it must define.
    """

    def replicas(self, world: World) -> int:
        """Return how many ways a global batch is divided: 1 where every process reads it all."""
        return 1

    def rounds(self, accumulate: int) -> int:
        """Return into how many batches a replica's part of a global batch is divided."""
        return accumulate

    def reads(self, world: World) -> bool:
        """Whether this process looks at batches at all; the middle of a pipeline does not."""
        return True

    def construct(self, make: Callable[[], nn.Module]) -> nn.Module:
        """Return the model that ``make`` makes, with or without memory, as ``engine`` wants it."""
        return make()

    def check(self, world_size: int) -> None:  # noqa: B027 - most take any number
        """Raise ``UsageError`` where ``world_size`` processes cannot train this way."""

    def check_objective(self, objective: Objective) -> None:  # noqa: B027 - most ask it all
        """Raise ``UsageError`` where ``objective`` does not answer what is asked of it here."""

    def engine(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizers,
        objective: Objective,
        settings: Settings,
        world: World,
    ) -> Engine:
        """Put ``model`` to work on this process's device. Collective."""
        return self.start(Work(model, make_optimizer, objective, settings, world))

    def rehearse(self, work: Work) -> Rehearsal:
        """Yield the engine of each process of one replica, to see what memory it takes.

        work: of an ``Imagined`` world. Each engine trains on fake tensors before the next is asked
        for, on a stand-in of its own for the model; its collectives meet nobody.
        """
        yield self.start(replace(work, model=stand_in(work.model, work.settings.precision)))

    @abstractmethod
    def start(self, work: Work) -> Engine:
        """Return the engine that does ``work``; see ``engine``."""
