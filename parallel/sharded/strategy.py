"""The strategy that divides a model's parameters over the processes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, fields, replace

from parallel.imagined import stand_in, unconnected
from parallel.sharded.keys import Keys
from parallel.single import Whole
from parallel.strategy import Engine, Rehearsal, Strategy, Work
from parallel.world import World


@dataclass(frozen=True)
class FSDP(Keys, Strategy):
    """Divide parameters, gradients and optimizer state; gather parameters while they are used.

    Rounds of accumulation keep whole gradients, and are reduced once.
    """

    def replicas(self, world: World) -> int:
        """Return the number of processes: each has its share of a global batch."""
        return world.size

    def start(self, work: Work) -> Engine:
        """Return this process's part of the model at work; in a world of one, the model alone."""
        if work.world.size > 1:
            from parallel.sharded.engine import Sharded  # what it imports takes half a second

            return Sharded(work, self)
        engine = Whole(work)
        ignored = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        if ignored:
            engine.notices = [
                f"one process divides nothing: it ignores strategy.{', strategy.'.join(ignored)}"
            ]
        return engine

    def rehearse(self, work: Work) -> Rehearsal:
        """Yield one process's part: all have about as much."""
        model = stand_in(work.model, work.settings.precision)
        with unconnected(work.world.size) if work.world.size > 1 else nullcontext():
            yield self.start(replace(work, model=model))
