"""Why replicas came apart: their parameters as they are, against what was wrapped at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from parallel.agreement import listed, ranked
from parallel.world import World

REPLACED = (
    "replaced by another object than the one wrapped at the start; "
    "write into that one: with torch.no_grad(): parameter.copy_(values)"
)
UNFROZEN = (
    "frozen when training started and trained now, each rank by its own gradient; let it require "
    "gradients from the start (learning rate 0 holds it still), or stop, unfreeze it and resume"
)
UNUSED = "no gradient"  # of one rank alone; who had none is added in words
BESIDE = (
    "changed beside the wrapped training step; compute the loss in the task's loss() and from the "
    "model that it is given, not from .module or a copy, and give a change by hand, as a first "
    "batch's initialisation, noise or averaging, the same values on every rank: "
    "torch.distributed.broadcast(tensor, 0); only where the machines are of unlike kinds, whose "
    "rounding may differ, and nothing else is left: train.compare_replicas=false"
)


class Start:
    """The parameters that a wrapper took in, and which of them it was to reduce."""

    def __init__(self, module: nn.Module) -> None:
        self._wrapped = {name: (p, p.requires_grad) for name, p in module.named_parameters()}

    def explain(self, module: nn.Module, unlike: Mapping[str, Sequence[int]], world: World) -> str:
        """Return, for names and the ``unlike`` ranks of each, what happened and what to do.

        Collective: what one rank alone can see is said on all.
        """
        told = world.gather_objects(self._changes(module))
        groups: dict[str, list[str]] = {}
        for name in unlike:
            groups.setdefault(_cause([own.get(name, "") for own in told]), []).append(name)
        lines = []
        for cause, names in groups.items():
            ranks = sorted({rank for name in names for rank in unlike[name]})
            lines.append(f"{listed(names)} on {ranked(ranks)}: {cause}")
        return "the replicas are no longer the same: " + "\n".join(lines)

    def _changes(self, module: nn.Module) -> dict[str, str]:
        """Return name -> what this rank sees of it; nothing where it is as it was."""
        now = dict(module.named_parameters())
        changes = dict.fromkeys(self._wrapped.keys() - now.keys(), REPLACED)
        for name, parameter in now.items():
            wrapped, required = self._wrapped.get(name, (None, False))
            if wrapped is not parameter:
                changes[name] = REPLACED
            elif parameter.requires_grad and not required:
                changes[name] = UNFROZEN
            elif parameter.requires_grad and parameter.grad is None:
                changes[name] = UNUSED
        return changes


def _cause(seen: Sequence[str]) -> str:
    """Return the one cause, from what each rank sees."""
    for cause in (REPLACED, UNFROZEN):
        if cause in seen:
            return cause
    without = [rank for rank, what in enumerate(seen) if what == UNUSED]
    if not 0 < len(without) < len(seen):
        return BESIDE
    return (
        f"without a gradient on {ranked(without)}; let the loss depend on it on every rank, or "
        "set strategy.find_unused_parameters=true"
    )
