"""Going on where a run was: which checkpoint, what of it, and what the configuration changed."""

from launch.resume.choice import Choice, Saved, choose, is_complete, load, named
from launch.resume.progress import Resumed, capture, restore
from launch.resume.settings import Built
from launch.resume.task_state import refuse_own_state

__all__ = [
    "Built",
    "Choice",
    "Resumed",
    "Saved",
    "capture",
    "choose",
    "is_complete",
    "load",
    "named",
    "refuse_own_state",
    "restore",
]
