"""Which checkpoint a run goes on from: chosen by rank 0 once it holds the folder, then shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from launch.checkpoint import CheckpointError, manifest, newest, read, read_state
from launch.config import Config, to_dict
from launch.folder import Found, differences
from parallel import World


@dataclass(frozen=True)
class Choice:
    """A checkpoint that rank 0 found whole; path: None where the run begins at its beginning."""

    path: Path | None = None
    manifest: str = ""  # by which the other ranks know that they see the same one
    notes: tuple[str, ...] = ()


Saved = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]  # model, optimizer, state


def is_complete(found: Found, config: Config) -> bool:
    """Whether there is nothing left to do for ``config`` in a folder."""
    train = config.train
    if found.state != "completed":
        return False
    if found.reason == "train.max_minutes":
        return bool(found.limits.get("max_minutes") == train.max_minutes)
    if found.reason == "early_stop":
        return bool(found.early_stop == to_dict(config)["early_stop"])
    by_epochs = train.epochs is not None and found.epoch >= train.epochs
    return by_epochs or (train.max_steps is not None and found.step >= train.max_steps)


def choose(checkpoints: Path, found: Found, config: Config) -> Choice:
    """Return the newest whole checkpoint of the run's own, else what ``checkpoint.resume`` names.

    Raises ``CheckpointError`` where there are some, and none is whole.
    """
    path, skipped = newest(checkpoints)
    notes = [f"skipped {bad}: {why}" for bad, why in skipped]
    if path is None and skipped:
        raise CheckpointError(
            f"{checkpoints} has {len(skipped)} checkpoints, and none is whole:\n"
            + "\n".join(f"  {bad.name}: {why}" for bad, why in skipped)
            + f"\nbring one back from a copy, or train anew: name={config.name}-2"
        )
    if path is None and config.checkpoint.resume != "auto":
        path = _named(Path(config.checkpoint.resume), config)
        notes.append(f"going on from {path}, as checkpoint.resume says")
    if path is not None:
        text = (path / manifest.NAME).read_text(encoding="utf-8")
        return Choice(path, text, (*notes, *found.changes))
    if found.state != "new":
        notes.append("no checkpoint was written here before: training begins at its beginning")
    return Choice(notes=tuple(notes))


def _named(given: Path, config: Config) -> Path:
    """Return the checkpoint that a path means: itself, or the newest of a run's folder."""
    path = given if (given / manifest.NAME).exists() else None
    for folder in (given / "checkpoints", given):
        path = path or newest(folder)[0]
    wrong = manifest.fault(path.resolve()) if path else "no whole checkpoint is there"
    if path is None or wrong:
        raise CheckpointError(
            f"checkpoint.resume={given}: {wrong}; wanted a run's folder, such as runs/NAME, or one "
            "of its checkpoints"
        )
    state = read_state(path)
    there = {
        "task": state["task"],
        "seed": state["seed"],
        "train": {"global_batch_size": state["global_batch_size"]},
        "data": {"drop_last": state["drop_last"]},
    }
    lines = differences(there, to_dict(config))
    if lines:
        raise CheckpointError(
            f"checkpoint.resume={given} is of another experiment:\n"
            + "\n".join(lines)
            + f"\nto take its weights alone: checkpoint.init_from={given}"
        )
    return path.resolve()


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
        saved = read(choice.path, verify=False)
    except CheckpointError as error:
        problem = f"rank {world.rank}: {error}" if world.size > 1 else str(error)
    problems = [each for each in world.gather_objects(problem) if each]
    if problems:
        raise CheckpointError(problems[0])
    return saved


def _compare(path: Path, wanted: str) -> None:
    try:
        met = (path / manifest.NAME).read_text(encoding="utf-8")
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
