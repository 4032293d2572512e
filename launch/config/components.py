"""The task and the strategy that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from launch.config.annotations import plain_defaults, settings_of
from launch.config.building import build, call, find_target
from launch.config.errors import ConfigError, nearest, refuse, shown
from launch.config.filling import fill
from launch.task import Task
from parallel import STRATEGIES, Strategy

T = TypeVar("T")


def build_task(settings: Mapping[str, Any]) -> Task:
    """Return the task. Each key has the type of the field it is named for."""
    return _built(settings, Task, "task")  # type: ignore[type-abstract]  # a kind


def build_strategy(settings: Mapping[str, Any], world_size: int) -> Strategy:
    """Return the strategy, once it agrees to ``world_size`` processes."""
    own = {name: value for name, value in settings.items() if name != "name"}
    if "_target_" in own:
        strategy = _built(own, Strategy, "strategy")  # type: ignore[type-abstract]  # a kind
    else:
        _refuse_keys_of_auto(settings.get("name"), own)
        strategy = _filled(_named(settings.get("name"), world_size), own, "strategy")
    strategy.check(world_size)
    return strategy


def _refuse_keys_of_auto(name: Any, own: Mapping[str, Any]) -> None:
    """Raise where keys of one strategy would hold or not by the number of processes."""
    if name == "auto" and own:
        key = next(iter(own))
        having = [n for n, cls in STRATEGIES.items() if key in plain_defaults(cls)] or ["ddp"]
        raise ConfigError(
            f"strategy.name=auto has no keys of its own, met strategy.{key}; "
            f"name the strategy that has it, such as strategy.name={having[0]}"
        )


def _named(name: Any, world_size: int) -> type[Strategy]:
    if name == "auto":
        name = "single" if world_size == 1 else "ddp"
    if name not in STRATEGIES:
        known = ["auto", *STRATEGIES]
        raise ConfigError(
            f"strategy.name: wanted {', '.join(known)}, met {shown(name)}"
            f"{nearest(str(name), known) or '; for your own type strategy._target_=module.Name'}"
        )
    return STRATEGIES[name]


def _built(settings: Mapping[str, Any], kind: type[T], key: str) -> T:
    cls = find_target(settings, kind, key)
    if settings_of(cls) is None:  # an ordinary class or function
        return build(settings, kind, key)
    own = {name: value for name, value in settings.items() if name != "_target_"}
    return _filled(cls, own, key)  # type: ignore[no-any-return]  # a T, if it is a class


def _filled(cls: Any, own: Mapping[str, Any], key: str) -> Any:
    problems: list[str] = []
    given = fill(cls, own, key, problems)
    refuse(problems)
    return call(cls, key, **given)
