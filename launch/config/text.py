"""YAML read into values that remember how they were typed, and plain values written as YAML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from launch.config.errors import ConfigError

_CORE = "tag:yaml.org,2002:"
_TAGS = ("str", "null", "bool", "int", "float", "timestamp", "value", "map", "seq")
_NULL = ("null", "~", "")
_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")
_INT = re.compile(r"[-+]?(0|[1-9](_?[0-9])*|0x[0-9a-fA-F]+|0o[0-7]+|0b[01]+)")
_FLOAT = re.compile(
    r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?"
)
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

_MISSING = "; between braces ??? stands in quotes, '???', or its key on a line of its own"


@dataclass(frozen=True)
class Word:
    """A value as it was typed.

    value: what YAML makes of it; on the command line it may be a dict or list of further words.
    text: letter by letter. plain: not in quotes. fault: why it is no YAML.
    """

    value: Any
    text: str
    plain: bool = True
    fault: str = ""


def read(text: str, where: str) -> Any:
    """Return ``text`` as dicts, lists and words; None where it is empty. ``where`` names it."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        hint = _MISSING if "???" in _line(text, mark) else ""
        raise ConfigError(f"{where}{line}: this is not YAML: {error.problem}{hint}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: this is not YAML: {error}") from None
    try:
        return None if node is None else _tree(node, where)
    except RecursionError:
        raise ConfigError(f"{where}: an alias (*name) stands inside its own anchor") from None


def read_word(text: str) -> Word:
    """Return a value of the command line. Quotes around all of it are taken off."""
    try:
        tree = read(text, "")
    except ConfigError as error:
        return Word(text, text, fault=str(error).rpartition(": ")[2])
    if isinstance(tree, Word):
        return Word(tree.value, text) if tree.plain else tree
    return Word(text if tree is None else tree, text)


def write(value: Any) -> str:
    """Return plain containers as YAML that ``read`` gives back unchanged."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def is_none_word(text: str) -> bool:
    """Whether someone may have meant null."""
    return text.lower() == "none"


def plain_value(text: str) -> Any:
    """Return what unquoted ``text`` stands for.

    YAML 1.1, but 1e-4 is a number, and 007, 12:30:00 and 2026-01-31 stay text.
    """
    if text.lower() in _NULL:
        return None
    if text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    if _INT.fullmatch(text):
        return int(text.replace("_", ""), 0)
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _line(text: str, mark: yaml.Mark | None) -> str:
    lines = text.splitlines()
    return lines[mark.line] if mark and mark.line < len(lines) else ""


def _tree(node: yaml.Node, where: str) -> Any:
    tag = node.tag.removeprefix(_CORE)
    if tag not in _TAGS:
        raise ConfigError(
            f"{where}, line {node.start_mark.line + 1}: the YAML tag {node.tag!r} is not known "
            "here; leave it out"
        )
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, where)
    if isinstance(node, yaml.SequenceNode):
        return [_tree(item, where) for item in node.value]
    is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
    return Word(plain_value(node.value) if is_plain else node.value, node.value, is_plain)


def _mapping(node: yaml.MappingNode, where: str) -> dict[str | int, Any]:
    tree: dict[str | int, Any] = {}
    shared: dict[str | int, Any] = {}  # what `<<: *anchor` brings in; own keys go first
    lines: dict[str | int, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if key_node.tag == f"{_CORE}merge":
            brought = _tree(value_node, where)
            for part in reversed(brought if isinstance(brought, list) else [brought]):
                shared.update(part if isinstance(part, dict) else {})
            continue
        key = _key(key_node, where)
        if key in lines:
            raise ConfigError(
                f"{where}, line {line}: the key {key!r} was already given in line {lines[key]}; "
                "keep one of them"
            )
        lines[key] = line
        tree[key] = _tree(value_node, where)
    return {**shared, **tree}


def _key(node: yaml.Node, where: str) -> str | int:
    """Return a key as typed, so that `on` stays text; whole numbers become numbers."""
    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(
            f"{where}, line {node.start_mark.line + 1}: wanted a name before the colon, met "
            "a list or mapping; put quotes around it"
        )
    text = str(node.value)
    return int(text, 0) if node.style is None and _INT.fullmatch(text) else text


class _Dumper(yaml.SafeDumper):
    """Quotes each text that would be read as something else."""

    def represent_data(self, data: Any) -> yaml.Node:
        if isinstance(data, str) and (plain_value(data) is not data or is_none_word(data)):
            return self.represent_scalar(f"{_CORE}str", data, style="'")
        return super().represent_data(data)

    def ignore_aliases(self, data: Any) -> bool:
        return True
