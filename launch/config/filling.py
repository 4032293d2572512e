"""Plain values given the types of a dataclass's fields, and checked against their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, make_dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launch.config.annotations import (
    alternatives,
    called,
    default_of,
    hints_of,
    is_mapping,
    section_of,
    settings_of,
)
from launch.config.building import apply_to_targets, build, call
from launch.config.errors import as_typed, joined, nearest, shown
from launch.config.interpolation import escaped
from launch.config.words import no_such_key


def fill(cls: type[Any], given: Mapping[Any, Any], key: str, problems: list[str]) -> dict[str, Any]:
    """Return ``given`` with the types of the fields of dataclass ``cls``, by name.

    Unknown and missing keys, wrong types and values out of bounds are added to ``problems``.
    """
    fields = {field.name: field for field in settings_of(cls) or []}
    hints = hints_of(cls)
    unknown = [str(name) for name in given if name not in fields]
    problems += [no_such_key(key, name, fields) for name in unknown]
    absent = [
        joined(key, name)
        for name, field in fields.items()
        if name not in given and default_of(field) is MISSING
    ]
    if absent:
        problems.append(f"{cls.__name__} needs {', '.join(absent)}; type {absent[0]}=VALUE")
    return {
        name: _typed(field, hints.get(name, Any), given[name], joined(key, name), problems)
        for name, field in fields.items()
        if name in given
    }


def _typed(field: Field[Any], hint: Any, value: Any, key: str, problems: list[str]) -> Any:
    """Return ``value`` as the field wants it."""
    default = default_of(field)
    if type(value) is type(default) and value == default:
        return value
    section = section_of(hint)
    if section is not None and isinstance(value, Mapping):
        before = len(problems)
        inner = fill(section, value, key, problems)
        return call(section, key, **inner) if len(problems) == before else None
    node = _node(hint)
    if node is None:  # OmegaConf knows no such annotation: it is for the class to judge
        if is_mapping(hint):
            return value
        return apply_to_targets(value, key, lambda inner, name: build(inner, object, name))
    try:
        OmegaConf.update(node, "value", escaped(value))
        result = OmegaConf.to_object(node).value  # type: ignore[union-attr]  # a Slot
    except OmegaConfBaseException as error:
        place = (error.full_key or "").removeprefix("value")
        problems.append(_problem(field, hint, value, key + place))
        return None
    if _breaks(result, value, hint, field.metadata):
        problems.append(_problem(field, hint, value, key))
    return result


def _node(hint: Any) -> Any:
    """Return a place for one value; None where OmegaConf knows no such annotation."""
    try:
        return OmegaConf.structured(make_dataclass("Slot", [("value", hint)]))
    except OmegaConfBaseException:
        return None


def _breaks(result: Any, value: Any, hint: Any, bounds: Mapping[Any, Any]) -> bool:
    """Whether a value of the right type is out of bounds."""
    if alternatives(hint) == (bool,) and type(value) is int and value not in (0, 1):
        return True  # OmegaConf takes 2 for true
    if result is None:
        return False
    if bounds.get("choices") and result not in bounds["choices"]:
        return True
    if not isinstance(result, int | float):
        return False
    least, above = bounds.get("at_least"), bounds.get("above")
    within = (least is None or result >= least) and (above is None or result > above)
    return not within  # also nan


def _problem(field: Field[Any], hint: Any, value: Any, key: str) -> str:
    """Return what was wanted, what was met, and what to type."""
    choices = field.metadata.get("choices") or ()
    close = nearest(value, choices) if isinstance(value, str) else ""
    return (
        f"{key}: wanted {called(hint, field.metadata)}, met {shown(value)}"
        f"{close or _usual(key, default_of(field), section_of(hint))}"
    )


def _usual(key: str, default: Any, section: type[Any] | None) -> str:
    """Return the default as one types it, or a section's first key."""
    if section is not None:
        return f"; type {key}.{(settings_of(section) or [])[0].name}=VALUE and so on"
    if isinstance(default, dict) and default:
        name, inner = next(iter(default.items()))
        return f"; the default is {key}.{name}={inner}"
    if default is None or isinstance(default, bool | int | float | str):
        return f"; the default is {key}={as_typed(default)}"
    return ""
