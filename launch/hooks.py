"""The task's own ``after_step``, as the loop calls it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from launch.events import Listener, Picture, Scalar
from launch.loop import Position
from launch.task import StepContext, Task
from parallel import UsageError, World


def after_step(
    task: Task, module: nn.Module, world: World, tell: Listener
) -> Callable[[Position], None] | None:
    """Return what calls the task's own ``after_step``; None where it has none."""
    if type(task).after_step is Task.after_step:
        return None

    def call(at: Position) -> None:
        def scalar(name: str, value: float) -> None:
            tell(Scalar(at.step, name, float(value)))

        def picture(name: str, pixels: Tensor) -> None:
            if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
                raise UsageError(
                    f"the picture {name!r} has shape {list(pixels.shape)}, wanted [3, height, "
                    "width] or [1, height, width]"
                )
            tell(Picture(at.step, name, pixels.detach().cpu()))

        task.after_step(StepContext(at.step, at.epoch, module, world.is_main, scalar, picture))

    return call
