"""A dict with a `_target_` made into the object it stands for.

    {_target_: torch.optim.SGD, lr: 0.1}  ->  torch.optim.SGD(params, lr=0.1)

Dicts with a `_target_` inside are built first, unless the parameter they go to is annotated as a
mapping. `_args_` is a list of positional arguments.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeVar

from launch.config.annotations import (
    hints_of,
    is_mapping,
    number_wanted,
    returned,
    signature_of,
)
from launch.config.errors import ConfigError, as_typed, joined, refuse, shown
from launch.config.importing import failure, import_target
from launch.config.words import no_such_key
from parallel import UsageError

T = TypeVar("T")
_RESERVED = ("_target_", "_args_")


def build(settings: Mapping[str, Any], kind: type[T], key: str, *leading: Any, **given: Any) -> T:
    """Return the object that ``settings`` stands for, a ``kind``. ``key`` is its name in messages.

    ``leading`` and ``given`` are further arguments, e.g. parameters for an optimizer.
    Raises ``ConfigError`` for everything that goes wrong, also in the constructor.
    """
    target = check_target(settings, kind, key, leading=len(leading), given=given)
    made = _with_targets(target, settings, key, lambda inner, name: build(inner, object, name))
    result = call(target, key, *leading, *made.pop("_args_", ()), **made, **given)
    if not isinstance(result, kind):
        raise ConfigError(
            f"{key}: wanted {_name(kind)}; {settings['_target_']} makes {_name(type(result))}"
        )
    return result


def check_target(
    settings: Mapping[str, Any],
    kind: type[Any],
    key: str,
    *,
    leading: int = 0,
    given: Collection[str] = (),
) -> Callable[..., Any]:
    """Return what `_target_` names, once it takes these keys and, as a class, is of ``kind``.

    Builds nothing. ``leading`` positional arguments and those named in ``given`` come later.
    """
    target = find_target(settings, kind, key)
    _with_targets(target, settings, key, lambda inner, name: check_target(inner, object, name))
    own = {name: value for name, value in settings.items() if name not in _RESERVED}
    leading += len(settings.get("_args_", ()))
    refuse(_mismatches(target, key, own, leading, given))
    return target


def find_target(settings: Mapping[str, Any], kind: type[Any], key: str) -> Callable[..., Any]:
    """Return what `_target_` names; a class must be of ``kind``, a function may not say another."""
    if not isinstance(settings, Mapping) or settings.get("_target_") is None:
        raise ConfigError(
            f"{key} does not say what to build; type {key}._target_=package.module.Name, "
            f"{_name(kind)}"
        )
    target = import_target(settings["_target_"], joined(key, "_target_"))
    if not callable(target):
        raise ConfigError(
            f"{key}._target_={settings['_target_']}: wanted a class or function; "
            f"this is {_name(type(target))}"
        )
    if isinstance(target, type) and not issubclass(target, kind):
        raise ConfigError(f"{key}: wanted {_name(kind)}; {settings['_target_']} is another class")
    _refuse_other_functions(target, settings["_target_"], kind, key)
    return target  # type: ignore[no-any-return]  # callable, as checked


def _refuse_other_functions(target: Any, name: str, kind: type[Any], key: str) -> None:
    """Raise where calling a function cannot give a ``kind``: it must not be tried."""
    if kind is object or not isinstance(target, FunctionType | BuiltinFunctionType | MethodType):
        return
    made = returned(target)
    if made and not any(issubclass(one, kind) or issubclass(kind, one) for one in made):
        raise ConfigError(f"{key}: wanted {_name(kind)}; {name} makes {_name(made[0])}")
    root = (target.__module__ or "").partition(".")[0]
    if isinstance(target, BuiltinFunctionType) or root in sys.stdlib_module_names:
        raise ConfigError(
            f"{key}: wanted {_name(kind)}; {name} is a function that makes none; name a class, or "
            "a function that returns one"
        )


def call(target: Callable[..., Any], key: str, /, *arguments: Any, **named: Any) -> Any:
    """Return ``target(...)``; what it raises becomes a ``ConfigError`` with its place."""
    try:
        return target(*arguments, **named)
    except UsageError:
        raise
    except Exception as error:
        name = getattr(target, "__qualname__", repr(target))
        raise ConfigError(f"{key}: {name} raised {failure(error)}") from error


def _mismatches(
    target: Any, key: str, own: Mapping[str, Any], leading: int, given: Collection[str]
) -> list[str]:
    """Return what is wrong with the keys ``own`` as arguments of ``target``."""
    signature = signature_of(target)
    if signature is None:
        return []
    parameters = list(signature.parameters.values())
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = {p.name for p in by_place[:leading]} | set(given)
    free = {p.name: p for p in parameters if p.name not in taken and not _is_rest(p)}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [] if takes_all else [name for name in own if name not in free]
    problems = [no_such_key(key, str(name), free) for name in unknown]
    absent = [n for n, p in free.items() if p.default is p.empty and n not in own]
    if absent:
        full = [joined(key, name) for name in absent]
        problems.append(f"{target.__qualname__} needs {', '.join(full)}; type {full[0]}=VALUE")
    return problems + _no_numbers(target, key, own, free)


def _no_numbers(
    target: Any, key: str, own: Mapping[str, Any], free: Mapping[str, inspect.Parameter]
) -> list[str]:
    """Return which of the keys ``own`` are text where the parameters ``free`` want a number."""
    hints, problems = hints_of(target), []
    for name, value in own.items():
        if not isinstance(value, str) or name not in free:
            continue
        default = free[name].default
        wanted = number_wanted(hints.get(name, float if type(default) is float else Any))
        if wanted:
            full = joined(key, name)
            plain = isinstance(default, bool | int | float)
            usual = f"; the default is {full}={as_typed(default)}" if plain else ""
            problems.append(f"{full}: wanted {wanted}, met {shown(value)}{usual}")
    return problems


def _is_rest(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def _with_targets(
    target: Any, settings: Mapping[str, Any], key: str, act: Callable[[Any, str], Any]
) -> dict[str, Any]:
    """Return the arguments in ``settings`` with ``act`` applied to each dict with a `_target_`."""
    hints = hints_of(target)
    return {
        name: value
        if is_mapping(hints.get(name))
        else apply_to_targets(value, joined(key, str(name)), act)
        for name, value in settings.items()
        if name != "_target_"
    }


def apply_to_targets(value: Any, key: str, act: Callable[[Any, str], Any]) -> Any:
    """Return ``value`` with ``act(dict, its name)`` in place of each dict with a `_target_`."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            return act(value, key)
        return {n: apply_to_targets(v, joined(key, str(n)), act) for n, v in value.items()}
    if isinstance(value, list | tuple):
        return [apply_to_targets(item, joined(key, n), act) for n, item in enumerate(value)]
    return value


def _name(kind: Any) -> str:
    """Return "an Optimizer (torch.optim.optimizer)"."""
    name = getattr(kind, "__name__", str(kind))
    article = "an" if name[0] in "AEIOUaeiou" else "a"
    module = getattr(kind, "__module__", "builtins")
    return f"{article} {name}" + ("" if module == "builtins" else f" ({module})")
