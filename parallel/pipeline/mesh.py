"""Which process computes which stage of which replica.

    ranks 0 1 2 3 4 5, 3 stages:    replica 0 is 0 1 2, replica 1 is 3 4 5

A replica's stages follow each other, so that neighbours share a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallel.world import World


@dataclass(frozen=True)
class Mesh:
    """A process's place: ``stage`` of ``stages``, ``replica`` of ``replicas``."""

    world: World
    stages: int

    @property
    def stage(self) -> int:
        """The stage that this process computes."""
        return self.world.rank % self.stages

    @property
    def replica(self) -> int:
        """The replica that this process belongs to."""
        return self.world.rank // self.stages

    @property
    def replicas(self) -> int:
        """How many replicas share each global batch."""
        return self.world.size // self.stages

    @property
    def is_first(self) -> bool:
        """Whether this stage reads the inputs."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the loss."""
        return self.stage == self.stages - 1

    def holders(self, stages: Sequence[int]) -> list[int]:
        """Return the ranks, of all replicas, that compute one of ``stages``."""
        return [rank for rank in range(self.world.size) if rank % self.stages in stages]

    def peers(self) -> World:
        """Return the world of those that hold what this process holds: one of each replica.

        Collective.
        """
        return self.world.among([self.holders([stage]) for stage in range(self.stages)])
