"""Whether a metric gets better: for stopping when it no longer does, for keeping the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.config import ConfigError


@dataclass
class Best:
    """The best value so far of an evaluated metric, and how many evaluations were not better.

    Evaluations are alike on all ranks to the last bit, so is what is judged by them.
    """

    metric: str
    mode: str
    key: str  # of the configuration, for messages
    value: float | None = None
    waited: int = 0

    def judge(self, metrics: Mapping[str, float]) -> bool:
        """Take in an evaluation; return whether it is the best so far."""
        if self.metric not in metrics:
            raise ConfigError(
                f"{self.key}.metric={self.metric} was not evaluated; there are "
                f"{', '.join(sorted(metrics)) or 'none'}"
            )
        value = metrics[self.metric]
        sign = 1 if self.mode == "max" else -1
        better = value == value and (self.value is None or sign * value > sign * self.value)
        if better:
            self.value = value
        self.waited = 0 if better else self.waited + 1
        return better

    def state(self) -> dict[str, Any]:
        """Return what must be known to go on."""
        return {
            "metric": self.metric,
            "mode": self.mode,
            "value": self.value,
            "waited": self.waited,
        }

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Go on from ``state``, if it is of the same metric."""
        if state and (state["metric"], state["mode"]) == (self.metric, self.mode):
            self.value, self.waited = state["value"], state["waited"]
