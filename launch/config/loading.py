"""Files and overrides made into one typed configuration, and that written down again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launch.config.errors import refuse, shown
from launch.config.filling import fill
from launch.config.importing import extend_import_path
from launch.config.interpolation import escaped, resolve
from launch.config.layers import add_file, add_overrides, read_file
from launch.config.schema import Config
from launch.config.text import write
from launch.config.words import settle


def load(files: Sequence[Path | str] = (), overrides: Sequence[str] = ()) -> Config:
    """Return the defaults with ``files`` laid over them in order, and ``key=value`` words last.

    The files' folders go on the import path, as what a `_target_` names may be imported from
    there. Raises ``ConfigError``.
    """
    layers = [read_file(Path(file)) for file in files]
    extend_import_path(files)
    tree: dict[Any, Any] = asdict(Config())
    if files:
        tree["name"] = Path(files[0]).stem
    for layer in layers:
        add_file(tree, layer)
    add_overrides(tree, overrides)
    problems: list[str] = []
    settled = settle(Config, tree, "", problems)
    refuse(problems)
    values = fill(Config, resolve(settled), "", problems)
    refuse(problems)
    config = Config(**values)
    refuse(_between_keys(config))
    return config


def to_dict(config: Config) -> dict[str, Any]:
    """Return the configuration as plain containers."""
    return asdict(config)


def to_yaml(config: Config) -> str:
    """Return the configuration as YAML that ``load`` reads back to an equal one."""
    return write(escaped(asdict(config), keep_run=True))


def _between_keys(config: Config) -> list[str]:
    """Return what the types of single keys cannot say."""
    problems = []
    name, train = config.name, config.train
    if not name.strip() or name in (".", "..") or "/" in name or not name.isprintable():
        problems.append(
            f"name: wanted the name of one folder inside {config.runs}, met {shown(name)}; "
            "type name=NAME, without / (the folder of all runs is runs=PATH)"
        )
    if not config.runs:
        problems.append("runs: wanted a folder, met ''; type runs=PATH")
    if (train.epochs, train.max_steps, train.max_minutes) == (None, None, None):
        problems.append(
            "nothing ends this run: train.epochs, train.max_steps and train.max_minutes are "
            "null; type one of them, such as train.epochs=20"
        )
    if config.seed >= 2**63:
        problems.append(f"seed: wanted a number below 2**63, met {config.seed}")
    if config.data.workers > 1024:
        problems.append(
            f"data.workers: wanted at most 1024 loader processes for each training process, met "
            f"{config.data.workers}"
        )
    return problems
