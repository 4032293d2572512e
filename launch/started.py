"""What is told of a run before its first step."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

import torch

from launch import __version__
from launch.config import to_dict, to_yaml
from launch.events import RunStarted
from launch.prepare import Length, Prepared
from parallel import STRATEGIES, Engine, Strategy, World


def started(
    prepared: Prepared, world: World, engine: Engine, length: Length, step: int
) -> RunStarted:
    """Return the event; step: 0, or the one that the run goes on after."""
    config, train = prepared.config, prepared.config.train
    sizes = [
        len(range(replica, train.global_batch_size, prepared.replicas))
        for replica in range(prepared.replicas)
    ]
    return RunStarted(
        folder=Path(prepared.folder),
        config=to_dict(config),
        config_text=to_yaml(config),
        strategy=_name(prepared.strategy),
        world_size=world.size,
        device=world.device.type,
        backend=world.backend,
        parameters=sum(p.numel() for p in engine.module.parameters()),
        global_batch_size=train.global_batch_size,
        batch_sizes=(min(sizes), max(sizes)),
        accumulate=train.accumulate,
        precision=train.precision,
        steps=length.steps,
        epochs=train.epochs,
        start_step=step,
        versions=_versions(),
    )


def _name(strategy: Strategy) -> str:
    known = {cls: name for name, cls in STRATEGIES.items()}
    return known.get(type(strategy), type(strategy).__name__.lower())


def _versions() -> Mapping[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, "launch": __version__}
