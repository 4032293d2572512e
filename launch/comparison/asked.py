"""What a comparison was asked for, and what of it lies in its folder already."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from launch.comparison.output import read
from launch.comparison.turns import Found
from launch.comparison.wanted import Wanted
from launch.config import ConfigError, to_dict
from launch.folder.differences import unlike

DECIDED = ("name", "runs")  # where it is kept


@dataclass
class Before:
    """What an earlier comparison of the same left; spent_s: seconds it took."""

    found: list[Found] = field(default_factory=list)
    spent_s: float = 0.0


def facts(wanted: Wanted) -> dict[str, Any]:
    """Return what decides the rows and their steps, as plain as JSON gives it back."""
    config = {key: each for key, each in to_dict(wanted.config).items() if key not in DECIDED}
    flags = {
        "--devices": wanted.machine.devices,
        "--steps": wanted.steps,
        "--rows": list(wanted.only),
        "--all": wanted.every,
        "--scale-batch": wanted.scales_batch,
        "--beside": wanted.beside,
    }
    plain: dict[str, Any] = json.loads(json.dumps({**config, **flags}, default=str))
    return plain


def before(wanted: Wanted) -> Before:
    """Return what to go on from: what broke is tried again.

    Raises ``UsageError`` where something else lies there.
    """
    kept = None if wanted.is_anew else read(wanted.folder)
    if kept is None:
        return Before()
    header, found = kept
    differs = _differences(header.asked, facts(wanted))
    if differs:
        listed = "\n".join(differs[:8])
        raise ConfigError(
            f"{wanted.folder} holds a comparison of something else:\n{listed}\n"
            "--anew replaces it; another name=NAME keeps both"
        )
    again = [replace(each, problem=each.foreseen.problem) for each in found]
    return Before(again, header.spent_s)


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    return [
        f"  {key.lstrip('.')}: {was} there, {shown} here"
        for key, shown, was in unlike("", there, here)
    ]
