"""Which checkpoint a run goes on from: chosen by rank 0 once it holds the folder, then shared."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from launch.checkpoint import (
    CheckpointError,
    fault,
    in_order,
    manifest,
    newest,
    read,
    read_state,
    refuse_blocked,
)
from launch.config import Config, to_dict
from launch.folder import Found, RunFolder, differences, saved_steps
from parallel import World


@dataclass(frozen=True)
class Choice:
    """A checkpoint that rank 0 found whole; path: None where the run begins at its beginning."""

    path: Path | None = None
    manifest: str = ""  # by which the other ranks know that they see the same one
    notes: tuple[str, ...] = ()
    skipped: tuple[Path, ...] = ()  # newer ones of the run's own that are not whole
    has_best: bool = False  # whether the run's own best one is still there


Saved = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]  # model, optimizer, state


def is_complete(checkpoints: Path, found: Found, config: Config) -> bool:
    """Whether there is nothing left to do for ``config`` in a folder, and its fruit is there."""
    train = config.train
    if found.state != "completed" or not _is_kept(checkpoints, found.step):
        return False
    if found.reason == "train.max_minutes":
        return bool(found.limits.get("max_minutes") == train.max_minutes)
    if found.reason == "early_stop":
        return bool(found.early_stop == to_dict(config)["early_stop"])
    by_epochs = train.epochs is not None and found.epoch >= train.epochs
    return by_epochs or (train.max_steps is not None and found.step >= train.max_steps)


def _is_kept(checkpoints: Path, step: int) -> bool:
    """Whether the newest checkpoint is of ``step``, and as large as it was written."""
    last = next(iter(in_order(checkpoints)), None)
    named = manifest.STEP.fullmatch(last.name) if last is not None else None
    if last is None or named is None or int(named[2]) != step:
        return False
    return manifest.fault(last, digests=False) is None


class State(dict[str, Any]):
    """A checkpoint's state, of which what it lacks is a mistake of the checkpoint's."""

    def __missing__(self, key: str) -> NoReturn:
        raise CheckpointError(
            f"the checkpoint's state.json has no {key!r}: it was changed by hand, or is another "
            "version's; remove that checkpoint, or train anew: name=OTHER"
        )


def choose(checkpoints: Path, found: Found, named: Choice | None, config: Config) -> Choice:
    """Return the newest whole checkpoint of the run's own, else the one that was ``named``.

    Raises ``CheckpointError`` where there are some, and none is whole, or none could be added.
    """
    refuse_blocked(checkpoints, "last", "best")
    path, skipped = newest(checkpoints)
    if path is not None:
        return Choice(
            path,
            _manifest(path),
            (*_told(skipped), *found.changes),
            tuple(bad for bad, _ in skipped),
            (checkpoints / "best" / manifest.NAME).is_file(),
        )
    if skipped:
        raise CheckpointError(
            f"{checkpoints} has {len(skipped)} checkpoints, and none is whole:\n"
            + "\n".join(f"  {bad.name}: {why}" for bad, why in skipped)
            + f"\nbring one back from a copy, or train anew: name={config.name}-2"
        )
    _refuse_lost(checkpoints, config)
    if named is not None:
        return replace(named, notes=(*named.notes, *found.changes))
    notes = ["no checkpoint was written here before: training begins at its beginning"]
    return Choice(notes=tuple(notes) if found.state != "new" else ())


def _refuse_lost(checkpoints: Path, config: Config) -> None:
    """Raise where a run has saved and nothing of it is there: its beginning is not the way on."""
    metrics = RunFolder(checkpoints.parent).metrics
    steps = saved_steps(metrics)
    if steps:
        raise CheckpointError(
            f"{metrics} tells of checkpoints, the last of step {steps[-1]}, and "
            f"{checkpoints} has none: bring them back, from a copy or by mounting their disk, and "
            f"give the same command again; or train anew: name={config.name}-2"
        )


def named(checkpoints: Path, config: Config, defaults: Mapping[str, Any]) -> Choice | None:
    """Return what ``checkpoint.resume`` names; None where the run has ``checkpoints`` of its own.

    Writes nothing: it is asked before a run's folder is made. defaults: of the task's keys.
    Raises ``CheckpointError``.
    """
    given = config.checkpoint.resume
    if given == "auto" or in_order(checkpoints):
        return None
    path, skipped = _meant(Path(given))
    if path is None:
        why = "".join(f"\n  {bad.name}: {wrong}" for bad, wrong in skipped)
        raise CheckpointError(
            f"checkpoint.resume={given}: no whole checkpoint is there; wanted a run's folder, such "
            f"as runs/NAME, or one of its checkpoints{why}"
        )
    _refuse_another(given, read_state(path), config, defaults)
    notes = (*_told(skipped), f"going on from {path}, as checkpoint.resume says")
    return Choice(path, _manifest(path), notes)


def _meant(given: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Return the checkpoint that a path means: itself, or the newest of a run's folder."""
    try:
        given = given.resolve()
    except (OSError, RuntimeError):  # links that lead round in a circle
        return None, []
    if manifest.STEP.fullmatch(given.name) or os.path.lexists(given / manifest.NAME):
        wrong = fault(given)
        return (None, [(given, wrong)]) if wrong else (given, [])
    folders = [folder for folder in (given / "checkpoints", given) if os.path.isdir(folder)]
    return newest(folders[0]) if folders else (None, [])


def _refuse_another(
    given: str, state: Mapping[str, Any], config: Config, defaults: Mapping[str, Any]
) -> None:
    there = {
        "task": state.get("task"),
        "seed": state.get("seed"),
        "train": {"global_batch_size": state.get("global_batch_size")},
        "data": {"drop_last": state.get("drop_last")},
    }
    lines = differences(there, to_dict(config), defaults)
    if lines:
        raise CheckpointError(
            f"checkpoint.resume={given} is of another experiment:\n"
            + "\n".join(lines)
            + f"\nto take its weights alone: checkpoint.init_from={given}"
        )


def _told(skipped: Sequence[tuple[Path, str]]) -> list[str]:
    return [f"skipped {bad}: {why}" for bad, why in skipped]


def _manifest(path: Path) -> str:
    return (path / manifest.NAME).read_text(encoding="utf-8")


def load(choice: Choice, world: World) -> Saved | None:
    """Return the chosen checkpoint, mapped into memory; None without one. Collective.

    Rank 0 has read every byte of it; that the others see the same one its manifest tells.
    Raises ``CheckpointError`` on all ranks if it cannot be read on one.
    """
    if choice.path is None:
        return None
    problem, saved = "", None
    try:
        if not world.is_main:
            _compare(choice.path, choice.manifest)
        model, optimizer, state = read(choice.path, verify=False)
        if not choice.has_best:  # a best value that no checkpoint holds would never be beaten
            state["best"] = None
        saved = model, optimizer, State(state)
    except CheckpointError as error:
        problem = f"rank {world.rank}: {error}" if world.size > 1 else str(error)
    problems = [each for each in world.gather_objects(problem) if each]
    if problems:
        raise CheckpointError(problems[0])
    return saved


def _compare(path: Path, wanted: str) -> None:
    try:
        met = _manifest(path)
    except OSError as error:
        raise CheckpointError(
            f"cannot see the checkpoint {path}: {error.strerror}; wanted a run folder on a file "
            "system that all nodes share: runs=FOLDER"
        ) from None
    if met != wanted:
        raise CheckpointError(
            f"{path} is another checkpoint here than on rank 0; wanted a run folder on a file "
            "system that all nodes share: runs=FOLDER"
        )


def same_experiment(config: Config) -> Mapping[str, Any]:
    """Return what a checkpoint says of the experiment it belongs to."""
    return {
        "task": config.task,
        "seed": config.seed,
        "global_batch_size": config.train.global_batch_size,
        "drop_last": config.data.drop_last,
    }
