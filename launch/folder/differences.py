"""In what two configurations differ, and whether they are of one experiment all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

SAME = ("task", "seed", "data.drop_last", "train.global_batch_size")  # or another experiment
ABSENT = object()


def differences(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> list[str]:
    """Return a line for each key that must stay the same and does not, with both values.

    defaults: what the task of ``wanted`` has for the keys that nobody wrote.
    """
    there, here = (dict(_identity(_filled(each, wanted, defaults))) for each in (saved, wanted))
    return [
        f"  {key}: {there.get(key, 'absent')} there, {here.get(key, 'absent')} here"
        for key in sorted(there.keys() | here.keys())
        if not _alike(there.get(key), here.get(key))
    ]


def changes(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each other key that says something else now, or only now or then."""
    there, here = (_others(each) for each in (saved, wanted))
    return tuple(
        f"{key.lstrip('.')}={shown} (was {was})" for key, shown, was in unlike("", there, here)
    )


def _others(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``config`` without names of folders and what makes an experiment another."""
    left = {key: value for key, value in config.items() if key not in (*SAME, "name", "runs")}
    for group, _, key in (each.partition(".") for each in SAME if "." in each):
        if isinstance(left.get(group), Mapping):
            left[group] = {name: value for name, value in left[group].items() if name != key}
    return left


def unlike(key: str, there: Any, here: Any) -> Iterator[tuple[str, str, str]]:
    """Yield key, value here and value there; a group that is null on one side is one value."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in sorted(there.keys() | here.keys()):
            yield from unlike(f"{key}.{name}", there.get(name, ABSENT), here.get(name, ABSENT))
    elif not (_is_nothing(there) and _is_nothing(here)):
        shown, was = _json(here), _json(there)
        if shown != was:
            yield key, shown, was


def _is_nothing(value: Any) -> bool:
    return value is None or value is ABSENT or value == {}


def _json(value: Any) -> str:
    return "absent" if value is ABSENT else json.dumps(value, default=str)


def _filled(
    config: Mapping[str, Any], wanted: Mapping[str, Any], defaults: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return ``config`` with the task's defaults, if it is the task that they are of."""
    task, ours = config.get("task"), wanted.get("task")
    if not isinstance(task, Mapping) or not isinstance(ours, Mapping):
        return config
    if task.get("_target_") != ours.get("_target_"):
        return config
    return {**config, "task": {**(defaults or {}), **task}}


def _alike(one: str | None, other: str | None) -> bool:
    """Whether two values in JSON are the same; 1 and 1.0 are."""
    if one == other or one is None or other is None:
        return one == other
    pair = json.loads(one), json.loads(other)
    return all(type(value) in (int, float) for value in pair) and pair[0] == pair[1]


def _identity(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each key that says which experiment this is, with its value as JSON."""
    for key in SAME:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        yield from _leaves(key, value)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(f"{key}.{name}", item)
    else:
        yield key, _json(value)
