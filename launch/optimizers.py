"""The optimizers of a run: the task's own, or the configuration's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer

from launch.config import build, with_run_values
from launch.task import Task
from parallel import UsageError

FUSED = {f"torch.optim.{kind.__name__}": kind for kind in (SGD, Adam, AdamW)}


def optimizer_maker(
    task: Task, settings: Mapping[str, Any], steps: int | None, steps_per_epoch: int | None
) -> Callable[[nn.Module], list[Optimizer]]:
    """Return what makes the optimizers of a model that is on its device already.

    steps, steps_per_epoch: of the run, which ``settings`` may name; None where not known.
    """

    def make(model: nn.Module) -> list[Optimizer]:
        _check_parameters(model)
        own = task.optimizers(model)
        if own is None:
            parameters = [p for p in model.parameters() if p.requires_grad]
            keys = with_run_values(settings, steps, steps_per_epoch, "optimizer")
            own = build(with_fused(keys, model), Optimizer, "optimizer", params=parameters)
        made = [own] if isinstance(own, Optimizer) else list(own)
        if not made or not all(isinstance(optimizer, Optimizer) for optimizer in made):
            met = [type(optimizer).__name__ for optimizer in made]
            raise UsageError(
                f"the task's optimizers() returned {met}, wanted a torch Optimizer, several in a "
                "list, or None for the one of the configuration"
            )
        refuse_closures(made)
        return made

    return make


def refuse_closures(optimizers: Sequence[Optimizer]) -> None:
    """Raise ``UsageError`` for an optimizer whose step must be given the loss to evaluate."""
    if any(isinstance(optimizer, LBFGS) for optimizer in optimizers):
        raise UsageError(
            "LBFGS evaluates the loss several times a step, which no strategy here does; "
            "use another optimizer, such as optimizer._target_=torch.optim.AdamW"
        )


def with_fused(settings: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return ``settings``, with fused=True where torch has that and nothing speaks against it.

    The fused update is up to 0.87x the step's CPU time, of the same numbers for SGD and to 3e-6
    for Adam. Of parameters that are divided over processes torch has it for Adam alone.
    """
    keys = dict(settings)
    said = {"fused", "foreach", "capturable", "differentiable"} & keys.keys()
    plain = all(p.is_floating_point() for p in model.parameters())
    sparse = any(getattr(part, "sparse", False) for part in model.modules())
    divided = any(hasattr(p, "to_local") for p in model.parameters())  # DTensors
    known = FUSED.keys() - ({"torch.optim.SGD"} if divided else set())
    if keys.get("_target_") in known and not said and plain and not sparse:
        keys["fused"] = True
    return keys


def _check_parameters(model: nn.Module) -> None:
    lazy = [n for n, p in model.named_parameters() if isinstance(p, UninitializedParameter)]
    if lazy:
        raise UsageError(
            f"the model's {lazy[0]} has no shape yet (a lazy module): call the model once on an "
            "example inside the task's model()"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise UsageError("the model has no trainable parameter: nothing to do for an optimizer")
