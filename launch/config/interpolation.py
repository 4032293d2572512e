"""What stands between ``${`` and ``}``: other keys, the environment, and numbers of the run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launch.config.errors import ConfigError, joined, nearest, refuse

_RUN = re.compile(r"\$\{run:\s*(\w*)\s*\}")
_RUN_KNOWN = ("steps", "steps_per_epoch")
_RUN_PLACES = ("optimizer", "scheduler")
_ADVICE = {
    "Environment variable": "set it, or give a default: ${oc.env:NAME,default}",
    "Unsupported interpolation": "known are ${some.key}, ${oc.env:NAME}, ${run:steps} and "
    "${run:steps_per_epoch}",
    "alternative at input": "close it with }, or write \\${ for these two characters",
}


def leaves(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full name and value of all that is neither dict nor list."""
    if isinstance(tree, Mapping):
        for name, inner in tree.items():
            yield from leaves(inner, joined(key, str(name)))
    elif isinstance(tree, list | tuple):
        for n, inner in enumerate(tree):
            yield from leaves(inner, joined(key, n))
    else:
        yield key, tree


def resolve(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Return ``tree`` with every ``${...}`` replaced, but for ``${run:...}``, known only later."""
    missing = [key for key, value in leaves(tree) if value == "???"]
    if missing:
        raise ConfigError(
            f"no value yet for {', '.join(missing)}; type {missing[0]}=VALUE"
            f"{' and so on' if len(missing) > 1 else ''}, or write it in a file"
        )
    run_protected = _mapped(tree, lambda text: re.sub(r"(?<!\\)\$\{run:", r"\\${run:", text))
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(run_protected), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_said(error, dict(leaves(tree)))) from None
    refuse(_run_problems(resolved))
    return resolved  # type: ignore[return-value]  # a mapping gives a mapping


def escaped(value: Any, *, keep_run: bool = False) -> Any:
    """Return resolved containers so written that resolving them again changes nothing."""
    pattern = re.compile(r"(\\*)\$\{(?!run:)" if keep_run else r"(\\*)\$\{")
    return _mapped(value, lambda text: pattern.sub(lambda m: m[1] * 2 + "\\${", text))


def with_run_values(
    settings: Mapping[str, Any], steps: int | None, steps_per_epoch: int | None, key: str = ""
) -> dict[str, Any]:
    """Return ``settings`` with ``${run:steps}`` and ``${run:steps_per_epoch}`` as numbers.

    key: the name of ``settings`` in messages.
    """
    values = {"steps": steps, "steps_per_epoch": steps_per_epoch}
    for full, text in leaves(settings, key):
        for name in _RUN.findall(text) if isinstance(text, str) else ():
            if values.get(name) is None:
                raise ConfigError(_no_run_value(full, text, name))
    return dict(_mapped(settings, lambda text: _with_numbers(text, values)))


def _with_numbers(text: str, values: Mapping[str, int | None]) -> Any:
    whole = _RUN.fullmatch(text)
    return values[whole[1]] if whole else _RUN.sub(lambda m: str(values[m[1]]), text)


def _no_run_value(key: str, text: str, name: str) -> str:
    if name not in _RUN_KNOWN:
        return f"{key}={text}: known of the run are {' and '.join(_RUN_KNOWN)}"
    if name == "steps":
        return (
            f"{key}={text}: how many steps this run takes is not known, as its data has no "
            "length or only time limits it; set train.max_steps=NUMBER"
        )
    return f"{key}={text}: the training data has no length; write the number itself, {key}=NUMBER"


def _run_problems(tree: Any) -> list[str]:
    problems = []
    for key, text in leaves(tree):
        for name in _RUN.findall(text) if isinstance(text, str) else ():
            if name not in _RUN_KNOWN:
                problems.append(_no_run_value(key, text, name))
            elif not key.startswith(_RUN_PLACES):
                problems.append(
                    f"{key}={text}: this is known only inside {' and '.join(_RUN_PLACES)}; "
                    "write the number itself"
                )
    return problems


def _said(error: OmegaConfBaseException, known: Mapping[str, Any]) -> str:
    """Return OmegaConf's message in one line, with the key, its text and what to do."""
    said = str(error).partition("\n")[0].rpartition("resolving interpolation: ")[2].strip('"')
    key = getattr(error, "full_key", None) or ""
    advice = next((f"; {text}" for words, text in _ADVICE.items() if words in said), "")
    absent = re.match(r"Interpolation key '(.*)' not found", said)
    if absent:
        advice = nearest(absent[1], known)
    return f"{key}={known.get(key, '${...}')}: {said}{advice}"


def _mapped(value: Any, change: Any) -> Any:
    """Return a copy of plain containers with ``change`` applied to each text, keys apart."""
    if isinstance(value, Mapping):
        return {name: _mapped(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value
