"""Loss scaling for float16, so that small gradients are not lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000  # as torch.amp.GradScaler's


class Scaler:
    """The factor on the loss: halved where gradients are not finite, doubled after 2,000 steps.

    The rule of torch.amp.GradScaler, and its state; but whether a step was good is told to it, so
    that processes that hold parts of one model keep one factor.
    """

    def __init__(self, enabled: bool) -> None:
        self._enabled, self._scale, self._good = enabled, 2.0**16, 0

    def is_enabled(self) -> bool:
        """Whether the loss is scaled at all."""
        return self._enabled

    def scale(self, loss: Tensor) -> Tensor:
        """Return ``loss`` times the factor."""
        return loss * self._scale if self._enabled else loss

    @property
    def inverse(self) -> float:
        """What brings gradients back to their size."""
        return 1.0 / self._scale

    def update(self, skipped: bool) -> None:
        """Take in whether a step was skipped; alike on all ranks."""
        if skipped:
            self._scale, self._good = self._scale * BACKOFF, 0
        elif self._good + 1 == INTERVAL:
            self._scale, self._good = self._scale * GROWTH, 0
        else:
            self._good += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state under GradScaler's names; empty where it is not enabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": GROWTH,
            "backoff_factor": BACKOFF,
            "growth_interval": INTERVAL,
            "_growth_tracker": self._good,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, ours or GradScaler's."""
        self._scale, self._good = float(state["scale"]), int(state["_growth_tracker"])
