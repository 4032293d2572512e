"""What a type annotation says of a key: which text it keeps, and how to call it in a sentence."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from launch.config.errors import shown

_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "text",
}
_NUMBERS = (int, float, bool)


def hints_of(target: Any) -> dict[str, Any]:
    """Return a callable's annotations by parameter, a dataclass's by field.

    Those that cannot be resolved are left out, but for int, float, str and bool.
    """
    is_plain_class = isinstance(target, type) and settings_of(target) is None
    source = target.__init__ if is_plain_class else target
    try:
        return get_type_hints(source)
    except Exception:  # users' annotations may name what is imported for type checkers only
        raw = getattr(source, "__annotations__", {})
        simple = {kind.__name__: kind for kind in (int, float, str, bool)}
        return {
            name: simple.get(hint, Any) if isinstance(hint, str) else hint
            for name, hint in raw.items()
        }


def signature_of(target: Any) -> inspect.Signature | None:
    """Return a callable's signature; None where it has none, as some of C have not."""
    try:
        return inspect.signature(target)
    except (ValueError, TypeError):
        return None


def settings_of(cls: Any) -> list[Field[Any]] | None:
    """Return the fields that a dataclass's own constructor takes, else None."""
    if not (isinstance(cls, type) and is_dataclass(cls)):
        return None
    taken = [field for field in fields(cls) if field.init]
    signature = signature_of(cls)
    is_generated = signature is not None and set(signature.parameters) == {f.name for f in taken}
    return taken if is_generated else None


def default_of(field: Field[Any]) -> Any:
    """Return a field's default; ``dataclasses.MISSING`` where it has none, or ???."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return MISSING if isinstance(field.default, str) and field.default == "???" else field.default


def plain_defaults(cls: Any) -> dict[str, Any]:
    """Return the defaults of a dataclass's fields that a configuration can hold, by name."""
    found = {field.name: default_of(field) for field in settings_of(cls) or []}
    return {name: value for name, value in found.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the types an annotation allows, None left out."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return (annotation,)
    return tuple(part for part in get_args(annotation) if part is not type(None))


def allows_none(annotation: Any) -> bool:
    """Whether null is a value."""
    return annotation is Any or type(None) in get_args(annotation)


def section_of(annotation: Any) -> type[Any] | None:
    """Return the dataclass among the types an annotation allows."""
    return next((part for part in alternatives(annotation) if settings_of(part) is not None), None)


def keeps_text(annotation: Any) -> bool:
    """Whether what was typed is meant letter by letter: text, paths, choices; null apart."""
    return all(
        part in (str, Path)
        or (get_origin(part) is Literal and all(isinstance(c, str) for c in get_args(part)))
        or (isinstance(part, type) and issubclass(part, Enum))
        for part in alternatives(annotation)
    )


def is_mapping(annotation: Any) -> bool:
    """Whether a dict is wanted as it is, with no object made of it."""
    origins = [get_origin(part) or part for part in alternatives(annotation)]
    return any(isinstance(o, type) and issubclass(o, Mapping) for o in origins)


def item_of(annotation: Any) -> Any:
    """Return the annotation of what a list, tuple or dict holds; Any where that is not said."""
    for part in alternatives(annotation):
        arguments = [a for a in get_args(part) if a is not Ellipsis]
        if arguments and get_origin(part) not in (Literal, Callable):
            return arguments[-1]
    return Any


def returned(function: Any) -> tuple[type[Any], ...]:
    """Return the classes that a function says it returns; none where that leaves anything open."""
    hint = hints_of(function).get("return", Any)
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return () if any(_is_open(part) for part in parts) else parts


def number_wanted(annotation: Any) -> str:
    """Return how to call the numbers that are wanted; "" where none are, or a text would do too."""
    parts = {part: get_origin(part) or part for part in alternatives(annotation)}
    if any(_is_open(kind) or issubclass(str, kind) for kind in parts.values()):
        return ""
    given = [part for part, kind in parts.items() if kind in (*_NUMBERS, list, tuple)]
    return called(Union[tuple(given)], {}) if {*_NUMBERS} & {*given} else ""  # noqa: UP007 - of a list


def called(annotation: Any, bounds: Mapping[str, Any]) -> str:
    """Return an annotation and its bounds as a person would say them."""
    names = [_called(part) for part in alternatives(annotation)]
    if choices := bounds.get("choices"):
        names = list(choices)
    said = ", ".join(names[:-1]) + (" or " if len(names) > 1 else "") + names[-1]
    if bounds.get("at_least") is not None:
        said += f" of at least {bounds['at_least']:g}"
    if bounds.get("above") is not None:
        said += f" above {bounds['above']:g}"
    return said + (" or null" if allows_none(annotation) and annotation is not Any else "")


def _called(part: Any) -> str:
    origin = get_origin(part)
    if part in _NAMES:
        return _NAMES[part]
    if origin is Literal:
        return " or ".join(shown(choice) for choice in get_args(part))
    if isinstance(part, type) and issubclass(part, Enum):
        return " or ".join(part.__members__)
    kind = origin or part
    if kind in (list, tuple):
        return f"a list ({part if origin else kind.__name__})"
    if settings_of(kind) is not None or is_mapping(kind):
        return "keys and values"
    return getattr(kind, "__name__", str(kind))


def _is_open(part: Any) -> bool:
    """Whether what an annotation allows cannot be told by ``issubclass``."""
    return part is Any or not isinstance(part, type) or getattr(part, "_is_protocol", False)
