"""Settings come from the configuration, progress from the checkpoint: which value is which.

Three are compared: a value as it was saved, as it was when that run was built, and as it is now
that this one is. What training never changed is a setting, and stays as it is now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from launch.checkpoint.plain import encode
from launch.schedule import Schedule

Groups = list[list[dict[str, Any]]]  # of each optimizer, its parameter groups' options


def carry_on(saved: Any, then: Any, now: Any) -> Any:
    """Return ``saved`` where training had changed it, else ``now``; mappings key by key."""
    if saved == then:
        return now
    if isinstance(saved, Mapping) and isinstance(then, Mapping) and isinstance(now, Mapping):
        merged = {key: carry_on(saved[key], then.get(key), now.get(key)) for key in saved}
        return {**now, **merged}
    if _are_tables(saved, then, now):
        return [carry_on(*each) for each in zip(saved, then, now, strict=True)]
    return saved


def _are_tables(*values: Any) -> bool:
    """Whether all are lists of mappings, equally long."""
    return all(
        isinstance(value, list)
        and value
        and len(value) == len(values[0])
        and all(isinstance(item, Mapping) for item in value)
        for value in values
    )


def options(optimizers: Sequence[Optimizer]) -> Groups:
    """Return the options of all parameter groups, as a checkpoint holds them."""
    return [
        [
            {key: encode(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        for optimizer in optimizers
    ]


def merge_groups(
    described: Sequence[Mapping[str, Any]], then: Groups, now: Groups, *, keeps_rate: bool = True
) -> None:
    """Bring the saved groups of ``EngineState.groups`` up to this run's settings, in place.

    A learning rate that training has lowered keeps its place: it is scaled as the rate the run
    began with. keeps_rate: False where what lowered it is gone.
    """
    for saved, old, new in zip(described, then, now, strict=False):
        for group, before, fresh in zip(saved["groups"], old, new, strict=False):
            merged = carry_on({k: v for k, v in group.items() if k != "params"}, before, fresh)
            rate, was, now_is = group.get("lr"), before.get("lr"), fresh.get("lr")
            if not keeps_rate:
                merged["lr"] = now_is
            elif rate != was and was != now_is and was:
                merged["lr"] = rate * now_is / was
            group.update(merged)


class Built:
    """A run's settings as they were when it was built, before its first step."""

    def __init__(self, optimizers: Sequence[Optimizer], schedule: Schedule) -> None:
        self.groups = options(optimizers)
        self.schedulers = [encode(state) for state in schedule.state()]

    def state(self) -> dict[str, Any]:
        """Return it as a checkpoint holds it."""
        return {"groups": self.groups, "schedulers": self.schedulers}
