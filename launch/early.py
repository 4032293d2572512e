"""Stopping when a metric no longer gets better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launch.config import ConfigError
from launch.config.schema import EarlyStop
from parallel import World


@dataclass
class EarlyStopping:
    """Counts evaluations without a better value; rank 0's answer holds for all."""

    settings: EarlyStop
    world: World
    best: float | None = None
    waited: int = 0

    def is_over(self, metrics: Mapping[str, float]) -> bool:
        """Take in an evaluation; return whether patience is used up. Collective."""
        if self.settings.metric not in metrics:
            raise ConfigError(
                f"early_stop.metric={self.settings.metric} was not evaluated; there are "
                f"{', '.join(sorted(metrics)) or 'none'}"
            )
        value = metrics[self.settings.metric]
        sign = 1 if self.settings.mode == "max" else -1
        if self.best is None or sign * value > sign * self.best:  # never true of NaN
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.world.share(self.waited >= self.settings.patience)
