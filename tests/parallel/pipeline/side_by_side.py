"""A pipeline and one process, trained on the same global batches and compared by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from parallel import Objective, Outcome, Settings, Share, Single, World
from parallel.pipeline import ModelParallel, Pipeline

X = torch.linspace(-2, 2, 36).reshape(12, 3).sin().double()
Y = X.sum(1, keepdim=True).cos()
FLOAT64 = Settings(precision="float64")
CUTS = {2: [3], 3: [2, 4], 4: [1, 2, 4]}  # of ``chain``; of 4 stages one has no parameters


def chain() -> nn.Module:
    """Return seven layers."""
    return nn.Sequential(
        nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 4), nn.Sigmoid(),
        nn.Linear(4, 1),
    )  # fmt: skip


def squares(outputs: Any, batch: Any) -> Outcome:
    """Return the mean of squares, and each one."""
    each = (outputs - batch[1]).square()
    return Outcome(each.mean(), None, {"square": each.reshape(-1)})


def first(batch: Any) -> Any:
    """Return a batch's inputs."""
    return batch[0]


def sgd(module: nn.Module) -> list[Optimizer]:
    """Return plain gradient descent."""
    return [SGD(module.parameters(), lr=0.1)]


@dataclass(frozen=True)
class Case:
    """What is trained; data: all samples' tensors [n, ...], in a tuple or a dict."""

    model: Callable[[], nn.Module] = chain
    loss: Callable[[Any, Any], Outcome] = squares
    data: Any = (X, Y)
    optimizers: Callable[[nn.Module], list[Optimizer]] = sgd
    settings: Settings = FLOAT64
    inputs: Callable[[Any], Any] = first

    @property
    def objective(self) -> Objective:
        """The task's questions."""

        def ask(model: nn.Module, batch: Any) -> Outcome:
            return self.loss(model(self.inputs(batch)), batch)

        return Objective(ask, ask, self.inputs, self.loss, self.loss)

    def engine(self, strategy: Any, world: World, seed: int = 0) -> Any:
        """Return a fresh model at work."""
        torch.manual_seed(seed)
        return strategy.engine(self.model(), self.optimizers, self.objective, self.settings, world)

    def batch(self, indices: Tensor) -> Any:
        """Return the samples of these numbers."""
        if isinstance(self.data, dict):
            return {name: tensor[indices] for name, tensor in self.data.items()}
        return type(self.data)(tensor[indices] for tensor in self.data)

    def share(
        self, indices: Sequence[int], rounds: int = 1, replicas: int = 1, replica: int = 0
    ) -> Share:
        """Return a replica's part of a global batch, as the data's sampler divides it."""
        samples = torch.tensor(indices)
        own = samples[replica::replicas]
        if not len(own):
            return Share([self.batch(samples[:1])], [0], len(samples))
        parts = own.tensor_split(min(rounds, len(own)))
        return Share([self.batch(each) for each in parts], [len(p) for p in parts], len(samples))


def pipeline(stages: int, split: Any = None, **keys: Any) -> Pipeline:
    """Return a pipeline cut at ``split``, without measuring anything."""
    keys = {"balance": "params", "microbatches": 4, **keys}
    return Pipeline(stages=stages, split=split or CUTS[stages], **keys)


class Pair:
    """The same model in a pipeline and in one process; ``said``: what both last said."""

    def __init__(self, world: World, case: Case, strategy: ModelParallel) -> None:
        self.case, self.strategy, self.world = case, strategy, world
        self.single = case.engine(Single(), World())
        replica = world.rank // strategy.stages  # all replicas start with the first one's numbers
        self.engine = case.engine(strategy, world, seed=replica)
        self.said: Any = None
        self.expected: Any = None

    @property
    def is_last(self) -> bool:
        """Whether this process has the last stage."""
        return (self.world.rank + 1) % self.strategy.stages == 0

    def step(self, indices: Sequence[int], accumulate: int = 1, parts: int = 1) -> Pair:
        """Train both on one global batch; parts: in how many the one process takes it."""
        self.said = self.train(indices, accumulate)
        self.expected = self.single.train_step(self.case.share(indices, parts))
        return self

    def train(self, indices: Sequence[int], accumulate: int = 1) -> Any:
        """Train the pipeline alone on one global batch."""
        rounds, replicas = self.strategy.rounds(accumulate), self.strategy.replicas(self.world)
        replica = self.world.rank // self.strategy.stages
        return self.engine.train_step(self.case.share(indices, rounds, replicas, replica))

    def apart(self, of: Callable[[Tensor], Tensor | None] = lambda p: p.grad) -> float:
        """Return the largest relative difference of gradients, or what ``of`` gives, held here."""
        found = [0.0]
        for own, other in self._held("named_parameters"):
            mine, theirs = of(own), of(other)
            if mine is None or theirs is None:
                found.append(0.0 if mine is theirs else float("inf"))
            elif mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                found.append(float("inf"))
            else:
                scale = max(float(theirs.abs().max()), 1e-300)
                found.append(float((mine - theirs).abs().max()) / scale)
        return max(found)

    def parameters_apart(self) -> float:
        """Return the largest relative difference of parameters held here."""
        return self.apart(lambda parameter: parameter.detach())

    def has_equal(self, kind: str) -> bool:
        """Whether "named_buffers" or "named_parameters" held here are the same, bit for bit."""
        return all(torch.equal(own, other) for own, other in self._held(kind))

    def _held(self, kind: str) -> list[tuple[Any, Any]]:
        pairs = zip(
            getattr(self.engine.module, kind)(), getattr(self.single.module, kind)(), strict=True
        )
        found = [(own, other) for (name, own), (other_name, other) in pairs if name == other_name]
        return [(own, other) for own, other in found if not own.is_meta]
