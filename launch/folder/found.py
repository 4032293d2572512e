"""What an earlier run left in a folder, and whether it is the same experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launch.folder.differences import changes, differences
from launch.folder.disk import FolderError
from launch.folder.run import RunFolder

LIMITS = ("epochs", "max_steps", "max_minutes")
FIRST = ("lock", "ranks", "STOP", "slurm-*", ".config.yaml.part")  # may be there before config.yaml


@dataclass(frozen=True)
class Found:
    """What a folder holds: ``new``, ``interrupted`` or ``completed``, and how far it came.

    last: the state in status.json, None without one. limits: of ``train`` in the config there,
    as early_stop. changes: what the configuration there says otherwise, a sentence each.
    """

    state: str
    last: str | None = None
    step: int = 0
    epoch: int = 0
    reason: str = ""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    limits: Mapping[str, float | None] = field(default_factory=dict)
    early_stop: Any = None
    changes: tuple[str, ...] = ()


def inspect(
    path: Path, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> Found:
    """Return what lies at ``path``; changes nothing.

    defaults: of the task's keys, see ``differences``.
    Raises ``FolderError`` where it holds another experiment than ``config`` or no run at all.
    """
    folder = RunFolder(path)
    if not _names(path):
        return Found("new")
    if not folder.config.is_file():
        _refuse_foreign(folder)
        return Found("new")
    saved = _read_config(folder)
    status = _read_status(folder.status)
    lines = differences(saved, config, defaults)
    if lines and not status.get("step") and not _names(folder.checkpoints):
        return Found("new")  # nothing was learnt yet that could be mixed up
    if lines:
        raise FolderError(
            f"run folder {path} holds another experiment:\n"
            + "\n".join(lines)
            + f"\nkeep both by another name: name={_free_name(path)}"
        )
    return _verdict(status, saved, changes(saved, config))


def _names(path: Path) -> list[str]:
    """Return what a folder holds; nothing where it does not exist."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except FileNotFoundError:
        if not path.is_symlink():
            return []
        raise FolderError(f"{path} is a link to nothing; remove it or use name=OTHER") from None
    except NotADirectoryError:
        raise FolderError(
            f"the run folder {path} is a file, or lies under one; use name=OTHER or runs=FOLDER"
        ) from None
    except OSError as error:
        raise FolderError(f"cannot read the run folder {path}: {error.strerror}") from error


def _refuse_foreign(folder: RunFolder) -> None:
    """Raise where a folder without config.yaml holds more than a run's first moments leave."""
    if folder.config.is_dir():
        raise FolderError(
            f"{folder.config} is a folder, wanted the run's configuration there; move it away, "
            f"bring the file back from a copy, or {_anew(folder)}"
        )
    if any(folder.checkpoints.glob("step-*/MANIFEST.json")):
        raise FolderError(
            f"{folder.path} holds a run's checkpoints but no config.yaml; bring that back from a "
            f"copy, or {_anew(folder)}"
        )
    foreign = [n for n in _names(folder.path) if not any(fnmatch(n, first) for first in FIRST)]
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise FolderError(
            f"{folder.path} is not a run folder: it holds {shown} but no config.yaml; "
            f"use an empty one: name={_free_name(folder.path)}"
        )


def _anew(folder: RunFolder) -> str:
    """Return how to go on without the configuration: from the checkpoints, under another name."""
    return f"go on in a new folder: name={_free_name(folder.path)} checkpoint.resume={folder.path}"


def _read_config(folder: RunFolder) -> dict[str, Any]:
    try:
        saved = OmegaConf.to_container(OmegaConf.load(folder.config), resolve=False)
        if isinstance(saved, dict) and saved:
            return {str(key): value for key, value in saved.items()}
        why = "no keys in it"
    except (OSError, YAMLError, OmegaConfBaseException, UnicodeError) as error:
        why = " ".join(str(error).split())
    raise FolderError(
        f"cannot read {folder.config}: {why}; mend it, or start anew: "
        f"name={_free_name(folder.path)}"
    )


def _read_status(path: Path) -> Mapping[str, Any]:
    """Return status.json; nothing where it is absent or broken."""
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def saved_steps(metrics: Path) -> list[int]:
    """Return the steps of the checkpoints that metrics.jsonl tells of; none without the file."""
    try:
        with metrics.open(encoding="utf-8", errors="replace") as file:
            return [step for line in file if (step := _saved_step(line)) is not None]
    except OSError:
        return []


def _saved_step(line: str) -> int | None:
    try:
        told = json.loads(line)
        return int(told["step"]) if told["event"] == "checkpoint" else None
    except (ValueError, TypeError, KeyError):  # cut off by a kill
        return None


def _verdict(
    status: Mapping[str, Any], saved: Mapping[str, Any], changes: tuple[str, ...]
) -> Found:
    last, train = status.get("state"), saved.get("train")
    return Found(
        "completed" if last == "completed" else "interrupted",
        last=last,
        step=status.get("step") or 0,
        epoch=status.get("epoch") or 0,
        reason=status.get("reason") or "",
        metrics=status.get("metrics") or {},
        limits={key: train.get(key) for key in LIMITS} if isinstance(train, Mapping) else {},
        early_stop=saved.get("early_stop"),
        changes=changes,
    )


def _free_name(path: Path) -> str:
    """Return the first of NAME-2, NAME-3, ... that is not taken."""
    number = 2
    while path.with_name(f"{path.name}-{number}").exists():
        number += 1
    return f"{path.name}-{number}"
