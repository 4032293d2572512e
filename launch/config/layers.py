"""Files and the command line laid over each other, before anything is typed."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from launch.config.errors import ConfigError, shown
from launch.config.text import Word, read, read_word

Tree = dict[Any, Any]  # dicts and lists of words; defaults are plain values
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+|\[\d+\])*")
_PART = re.compile(r"\[(\d+)\]|([\w-]+)")


def is_override(word: str) -> bool:
    """Whether ``word`` is ``key.sub=value``."""
    key, equals, _ = word.partition("=")
    return bool(equals) and _KEY.fullmatch(key) is not None


def read_file(path: Path) -> Tree:
    """Return a YAML file's mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = sorted(str(other) for other in path.parent.glob("*.y*ml"))
        close = get_close_matches(str(path), beside, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"there is no file {path}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a text file: {error}") from None
    tree = read(text, str(path))
    if tree is None or tree == {} or (isinstance(tree, Word) and tree.value is None):
        raise ConfigError(
            f"{path} has no keys: wanted lines of 'key: value', such as 'task: {{_target_: "
            "my_module.MyTask}'; for the built-in run give no file"
        )
    if not isinstance(tree, dict):
        met = "a list" if isinstance(tree, list) else shown(tree.text)
        raise ConfigError(f"{path}: wanted lines of 'key: value' at the top, met {met}")
    return tree


def add_file(tree: Tree, layer: Tree) -> None:
    """Lay a file over ``tree``."""
    _forget(tree, layer)
    _merge(tree, layer)


def add_overrides(tree: Tree, overrides: Sequence[str]) -> None:
    """Lay the command line over ``tree``: one layer, whose words apply in order."""
    changes = [_change(override) for override in overrides]
    layer: Tree = {}
    for parts, word in changes:
        nested = copy.deepcopy(_opened(word))
        for part in reversed(parts):
            nested = {str(part): nested}
        _merge(layer, nested)
    _forget(tree, layer)
    for parts, word in changes:
        _set(tree, parts, word)


def _change(override: str) -> tuple[list[str | int], Word]:
    if not is_override(override):
        raise ConfigError(f"wanted key=value, such as train.epochs=5; met {override!r}")
    key, _, value = override.partition("=")
    parts = [int(index) if index else name for index, name in _PART.findall(key)]
    return parts, read_word(value)


def _forget(tree: Any, layer: Any, is_top: bool = True) -> None:
    """Drop what belongs to a `_target_` or strategy that ``layer`` replaces by another."""
    old = _children(tree)
    for key, new in _children(layer).items():
        if isinstance(old.get(key), dict | list) and isinstance(new, dict | list):
            place, is_strategy = old[key], is_top and key == "strategy"
            before, after = _choice(place, is_strategy), _choice(new, is_strategy)
            if after is not None and before != after and (before is not None or is_strategy):
                place.clear()
            else:
                _forget(place, new, is_top=False)


def _choice(tree: Any, is_strategy: bool) -> str | None:
    """Return what decides which other keys make sense."""
    if isinstance(tree, list):
        return None
    word = tree.get("_target_", tree.get("name") if is_strategy else None)
    return word.text if isinstance(word, Word) else word


def _children(tree: Any) -> dict[str, Any]:
    pairs = enumerate(tree) if isinstance(tree, list) else tree.items()
    return {str(key): value for key, value in pairs}


def _merge(tree: Tree, layer: Mapping[Any, Any]) -> None:
    for key, new in layer.items():
        slot = _same_key(tree, key)
        if isinstance(new, dict) and isinstance(tree.get(slot), dict):
            _merge(tree[slot], new)
        else:
            tree[slot] = new


def _same_key(tree: Tree, key: Any) -> Any:
    """Return the key of ``tree`` that reads like ``key``: 0 and "0" are one."""
    return next((known for known in tree if str(known) == str(key)), key)


def _set(tree: Tree, parts: Sequence[str | int], word: Word) -> None:
    place: Any = tree
    for depth, part in enumerate(parts):
        slot = _slot(place, part, _named(parts[:depth]))
        old = _opened(place[slot]) if isinstance(place, list) or slot in place else None
        if depth == len(parts) - 1:
            _put(place, slot, old, word)
            return
        if not isinstance(old, dict | list):
            _want_no_index(parts, depth)
            old = {}
        place[slot] = old
        place = old


def _put(place: Any, slot: Any, old: Any, word: Word) -> None:
    if isinstance(old, dict) and isinstance(word.value, dict):
        _merge(old, copy.deepcopy(word.value))
    else:
        place[slot] = copy.deepcopy(word)


def _slot(place: Any, part: str | int, name: str) -> Any:
    """Return where ``part`` lies in a dict or list that is called ``name``."""
    if isinstance(place, dict):
        if isinstance(part, int):
            raise ConfigError(f"{name}[{part}]: {name} is no list; write {name}.KEY=VALUE")
        return _same_key(place, part)
    if not str(part).isdigit():
        raise ConfigError(f"{name}.{part}: {name} is a list; write {name}[0]=VALUE")
    if int(part) >= len(place):
        known = f"[0] to [{len(place) - 1}]" if place else "none"
        raise ConfigError(
            f"{name}[{part}]: {name} has {len(place)} items, {known}; "
            f"to change its length write {name}=[...]"
        )
    return int(part)


def _want_no_index(parts: Sequence[str | int], depth: int) -> None:
    """Raise where the next part counts into something that is no list yet."""
    if str(parts[depth + 1]).isdigit():
        name = _named(parts[: depth + 1])
        raise ConfigError(
            f"{_named(parts[: depth + 2])}: {name} is not a list so far; "
            f"write all of it: {name}=[...]"
        )


def _named(parts: Sequence[str | int]) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts).lstrip(".")


def _opened(word: Any) -> Any:
    """Return the dict or list that a word of the command line holds, else the word."""
    is_open = isinstance(word, Word) and isinstance(word.value, dict | list)
    return word.value if is_open else word
