"""What happens in a run, as plain facts. Listeners see these and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class RunStarted:
    """All is built; the first step comes next."""

    folder: Path
    config: Mapping[str, Any]  # resolved, plain containers
    config_text: str  # the same as YAML
    strategy: str  # as it runs, never "auto"
    world_size: int
    device: str  # "cpu", "cuda"
    backend: str | None  # None in a world of one
    parameters: int  # numbers in the model, all replicas counted once
    global_batch_size: int
    batch_sizes: tuple[int, int]  # least and most samples a process gets of a full global batch
    accumulate: int
    precision: str
    steps: int | None  # planned; None where only time or the data's end limits the run
    epochs: int | None
    start_step: int  # 0, or where a resumed run goes on
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """A log interval has passed: means over it and over all replicas.

    Here ``epoch`` is the one that the last step belongs to, the first is 0; in all other events it
    is how many epochs are done. A person is shown ``epoch + 1``: the first is 1.
    """

    step: int  # optimizer steps done, the first is 1
    epoch: int  # that the last of them belongs to, the first is 0
    loss: float  # weighted mean since the last Progress
    metrics: Mapping[str, float]
    lr: float  # of the interval's last step
    grad_norm: float
    samples_per_s: float | None  # over all processes; None while warming up
    time_s: Mapping[
        str, float
    ]  # phase -> mean s a step on rank 0, and "step"; empty while warming up
    peak_gib: float  # the most any process held
    slowest_rank: int
    skipped: int  # steps of the whole run whose gradients were not finite


@dataclass(frozen=True)
class EvaluationDone:
    """Every sample of a split was seen once."""

    step: int
    epoch: int  # whole epochs done
    split: str  # "valid"
    samples: int
    metrics: Mapping[str, float]  # "loss", "accuracy"
    seconds: float


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint is whole on the disk."""

    step: int
    epoch: int  # whole epochs done
    path: Path
    seconds: float  # until it was whole
    stalled_s: float = 0.0  # of these, what training waited


@dataclass(frozen=True)
class Scalar:
    """A number that the task reported under a name of its own."""

    step: int
    name: str
    value: float


@dataclass(frozen=True)
class Picture:
    """A picture that the task reported: [3, height, width] or [1, height, width], 0 to 1."""

    step: int
    name: str
    pixels: Tensor


@dataclass(frozen=True)
class Notice:
    """Something a person should know once: one sentence."""

    text: str


@dataclass(frozen=True)
class RunEnded:
    """The last event, on every way out."""

    state: str  # "completed" | "stopped" | "failed"
    step: int
    epoch: int  # whole epochs done
    reason: str  # one line: which limit ended it, or what went wrong
    rank: int | None  # the rank that failed first
    metrics: Mapping[str, float]  # "valid/accuracy": the last of each evaluation
    seconds: float  # since RunStarted


Event = (
    RunStarted | Progress | EvaluationDone | CheckpointSaved | Scalar | Picture | Notice | RunEnded
)
Listener = Callable[[Event], None]
