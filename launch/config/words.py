"""Words given the text or the value that their key takes, by the schema and by what is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from launch.config.annotations import (
    allows_none,
    default_of,
    hints_of,
    item_of,
    keeps_text,
    section_of,
    settings_of,
)
from launch.config.errors import ConfigError, joined, nearest
from launch.config.importing import import_target
from launch.config.text import Word, is_none_word
from parallel import STRATEGIES

_ANYTHING = object()  # the annotation where nothing is known: even the word none may be right


def settle(annotation: Any, tree: Any, key: str, problems: list[str]) -> Any:
    """Return ``tree`` with every word replaced; what cannot be meant is added to ``problems``.

    Keys that keep their text: those annotated as text, in the schema and in the class or
    function that a `_target_` names.
    """
    if isinstance(tree, Word):
        return _settle_word(annotation, tree, key, problems)
    if isinstance(tree, dict):
        hints, other = _inside(annotation, tree, key, problems)
        return {
            name: settle(hints.get(name, other), inner, joined(key, str(name)), problems)
            for name, inner in tree.items()
        }
    if isinstance(tree, list):
        item = _item(annotation)
        return [settle(item, inner, joined(key, n), problems) for n, inner in enumerate(tree)]
    return tree


def _settle_word(annotation: Any, word: Word, key: str, problems: list[str]) -> Any:
    if word.value is None:
        return None
    if word.plain and is_none_word(word.text) and annotation is not _ANYTHING:
        if not keeps_text(annotation) or allows_none(annotation):
            problems.append(
                f"{key}={word.text}: type null where nothing is meant, {key}=null; "
                f"for the word itself put it in quotes, {key}='\"{word.text}\"'"
            )
    elif keeps_text(annotation):
        return word.text
    elif word.fault:
        quotes = f"; for plain text put it in quotes, {key}='\"...\"'"
        hint = "" if "???" in word.fault else quotes
        problems.append(f"{key}={word.text}: this is not YAML: {word.fault}{hint}")
    elif isinstance(word.value, dict | list):
        return settle(annotation, word.value, key, problems)
    return word.value


def _inside(
    annotation: Any, tree: Mapping[Any, Any], key: str, problems: list[str]
) -> tuple[Mapping[Any, Any], Any]:
    """Return the annotations of a dict's keys, and that of every other key."""
    section = section_of(annotation)
    if section is not None:
        hints = hints_of(section)
        names = full_names(section) if not key else hints
        problems += [no_such_key(key, str(name), names) for name in tree if name not in hints]
        return hints, _ANYTHING
    if "_target_" not in tree and not (key == "strategy" and "name" in tree):
        return {}, _item(annotation)
    cls = _made(tree, key)
    return ({}, _ANYTHING) if cls is None else (hints_of(cls), Any)


def _item(annotation: Any) -> Any:
    return annotation if annotation is _ANYTHING else item_of(annotation)


def no_such_key(inside: str, name: str, names: Iterable[str]) -> str:
    """Return the problem that what ``inside`` stands for has only ``names``."""
    names, key = list(names), joined(inside, name)
    known = ", ".join(full for full in names if "." not in full) or "none"
    if "." in name:
        return f"{key}: keys in a file are nested: write 'a: {{b: value}}', not 'a.b: value'"
    return f"there is no key {key}{nearest(name, names, inside)} (known here: {known})"


def full_names(section: type[Any]) -> list[str]:
    """Return a dataclass's keys, and after them those inside its sections: "train.epochs"."""
    hints, fields = hints_of(section), settings_of(section) or []
    inner: list[str] = []
    for field in fields:
        part, default = section_of(hints[field.name]), default_of(field)
        subs = full_names(part) if part else default if isinstance(default, dict) else ()
        inner += [f"{field.name}.{sub}" for sub in subs]
    return [field.name for field in fields] + inner


def _made(tree: Mapping[Any, Any], key: str) -> Any:
    """Return what a dict will be made into; None where that cannot be told before it is built."""
    target = tree.get("_target_", tree.get("name"))
    name = target.text if isinstance(target, Word) else target
    if "_target_" not in tree:
        return STRATEGIES.get(name)
    try:
        return import_target(name, key)
    except ConfigError:  # building it will say so
        return None
