"""Torch's generator as a witness of whether anybody else has set it since the last draw."""

from __future__ import annotations

import torch

from parallel.errors import UsageError


class Witness:
    """Torch's generator moved by a step for each draw, so that whoever sets it is found out."""

    def __init__(self) -> None:
        self._before = torch.get_rng_state()
        self._expected = self._before
        self._move()  # a seed that was set already, set again, must be seen

    def draw(self) -> None:
        """Take part in a draw."""
        self._check()
        self._move()

    def give_back(self, check: bool) -> None:
        """Put the generator where it was."""
        try:
            if check:
                self._check()
        finally:
            torch.set_rng_state(self._before)

    def _move(self) -> None:
        torch.rand(1, device="cpu")
        self._expected = torch.get_rng_state()

    def _check(self) -> None:
        if not torch.equal(torch.get_rng_state(), self._expected):
            raise UsageError("it seeds or sets torch's random generator itself")
