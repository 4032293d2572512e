"""Every key of a run's configuration, with its type, default, bounds and meaning."""

# ruff: noqa: RUF009 - key() is a dataclass field
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def key(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field that knows its meaning and its bounds; None passes every bound."""
    bounds = {"help": help, "at_least": at_least, "above": above, "choices": choices}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=bounds)
    return field(default=default, metadata=bounds)


@dataclass
class Train:
    """How long and how large. The first limit reached ends the run."""

    epochs: int | None = key(20, "passes over the training data", at_least=1)
    max_steps: int | None = key(None, "optimizer steps", at_least=1)
    max_minutes: float | None = key(None, "minutes of training", above=0)
    global_batch_size: int = key(
        64, "samples an optimizer step sees, over all processes and accumulation", at_least=1
    )
    accumulate: int = key(1, "rounds a process divides its part of a batch into", at_least=1)
    precision: str = key(
        "float32",
        "float32, float64, or autocast to bfloat16 or float16 (with loss scaling)",
        choices=("float32", "float64", "bfloat16", "float16"),
    )
    clip_norm: float | None = key(None, "largest norm of the gradients of all parameters", above=0)
    max_skipped: int = key(
        10, "steps in a row without finite gradients that end the run", at_least=1
    )
    compare_replicas: bool = key(
        True, "compare the replicas' weights after steps 1 and 2 and at checkpoints"
    )
    compile: bool = key(False, "compile the model with torch.compile")
    deterministic: bool = key(False, "use torch's deterministic algorithms only")


@dataclass
class Evaluate:
    """When every split but train is judged; always once more at the end."""

    every_epochs: int | None = key(1, "epochs between evaluations", at_least=1)
    every_steps: int | None = key(None, "optimizer steps between evaluations", at_least=1)
    batch_size: int | None = key(
        None, "samples a process judges at once; null: its part of a global batch", at_least=1
    )


@dataclass
class EarlyStop:
    """End the run when an evaluated metric no longer gets better."""

    metric: str = key("valid/loss", "split/metric, as TensorBoard names it")
    mode: str = key("min", "which way is better", choices=("min", "max"))
    patience: int = key(3, "evaluations without a better value that end the run", at_least=1)


@dataclass
class Data:
    """How samples are fetched."""

    workers: int = key(0, "loader processes for each training process", at_least=0)
    drop_last: bool = key(False, "leave out the last batch of an epoch where it is not full")
    prefetch: int = key(2, "batches each loader process holds ready", at_least=1)
    pin: str = key("auto", "pinned memory; auto: on CUDA", choices=("auto", "true", "false"))
    persistent: bool = key(True, "keep the loader processes from epoch to epoch")
    start_method: str = key(
        "auto",
        "how loader processes start; auto: torch's own",
        choices=("auto", "fork", "spawn", "forkserver"),
    )


@dataclass
class BestBy:
    """Which checkpoint is the best, and kept whatever its age."""

    metric: str = key("valid/loss", "split/metric, as TensorBoard names it")
    mode: str = key("min", "which way is better", choices=("min", "max"))


@dataclass
class Checkpoint:
    """When the run is saved, and what it begins with. It always is at the end and at a stop."""

    every_epochs: int | None = key(1, "epochs between checkpoints", at_least=1)
    every_steps: int | None = key(None, "optimizer steps between checkpoints", at_least=1)
    every_minutes: float | None = key(None, "minutes between checkpoints", above=0)
    keep: int = key(2, "how many of the newest stay", at_least=1)
    best: BestBy | None = key(None, "null, or its keys: saved when an evaluation is the best")
    resume: str = key(
        "auto",
        "auto: the folder's own newest; or the run folder or checkpoint a new run goes on from",
    )
    init_from: str | None = key(None, "a file or folder of weights that a new run begins with")
    init_strict: bool = key(True, "whether all names and shapes in init_from must fit the model")
    asynchronous: bool = key(False, "write while training goes on; takes a copy in memory")
    on_error: str = key(
        "stop",
        "where a checkpoint cannot be written: stop, or go_on to the next one",
        choices=("stop", "go_on"),
    )


@dataclass
class Fault:
    """A fault on purpose, once in a run's life, to see whether it recovers."""

    kind: str | None = key(
        None,
        "kill, raise, hang, nan (gradients), slow (10 s), truncate (the last checkpoint; kills)",
        choices=("kill", "raise", "hang", "nan", "slow", "truncate"),
    )
    rank: int = key(0, "where", at_least=0)
    step: int = key(1, "in which optimizer step; the first is 1", at_least=1)


@dataclass
class Log:
    """What is shown and written while training."""

    every_steps: int = key(10, "optimizer steps between lines", at_least=1)
    progress: str = key(
        "auto",
        "bar, lines or none; auto: a bar on a terminal",
        choices=("auto", "bar", "lines", "none"),
    )


@dataclass
class Launch:
    """How the processes find each other."""

    timeout_s: float = key(600.0, "seconds a process waits for the others in a collective", above=0)
    device: str = key("auto", "auto: cuda where there is one", choices=("auto", "cpu", "cuda"))
    backend: str = key("auto", "auto: nccl on cuda, gloo on cpu", choices=("auto", "gloo", "nccl"))
    device_memory_gib: float | None = key(
        None, "what strategy.name=auto may fill of each device; null: a GPU's own", above=0
    )


@dataclass
class Config:
    """A run. Defaults are the built-in one: a small CNN on real digits."""

    name: str = key("digits", "the run's folder is RUNS/NAME; with a file, the file's stem")
    runs: str = key("runs", "the folder that holds all runs")
    seed: int = key(0, "of initialisation, order and augmentation", at_least=0)
    task: dict[str, Any] = key(
        {"_target_": "launch.tasks.digits.Digits"},
        "_target_: a Task; its fields are the other keys",
    )
    optimizer: dict[str, Any] = key(
        {"_target_": "torch.optim.AdamW", "lr": 2e-3},
        "_target_: any torch optimizer, and its keys; ${run:steps} is known, as in scheduler",
    )
    scheduler: dict[str, Any] | None = key(
        None,
        "_target_: any torch scheduler, stepped after each optimizer step (ReduceLROnPlateau: at "
        "each evaluation, by `metric`); ${run:steps} and ${run:steps_per_epoch} are known",
    )
    strategy: dict[str, Any] = key(
        {"name": "auto"},
        "name: auto, single, data_parallel, ddp, fsdp, model_parallel or pipeline, and its own "
        "keys",
    )
    train: Train = field(default_factory=Train)
    evaluate: Evaluate = field(default_factory=Evaluate)
    early_stop: EarlyStop | None = key(None, "null, or its keys")
    data: Data = field(default_factory=Data)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    log: Log = field(default_factory=Log)
    launch: Launch = field(default_factory=Launch)
    fault: Fault = field(default_factory=Fault)
