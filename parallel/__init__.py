"""Ways to train in parallel. Usable alone; imports nothing from ``launch``."""

from parallel.data_parallel import DataParallel
from parallel.ddp import DDP
from parallel.devices import find_device
from parallel.ending import leave, peer_left
from parallel.errors import DisagreementError, PeerLeftError, UsageError, WorldError
from parallel.phases import Phases
from parallel.pipeline import ModelParallel, Pipeline
from parallel.place import Place
from parallel.sharded import FSDP
from parallel.single import Single
from parallel.strategy import (
    Batch,
    Engine,
    EngineState,
    Objective,
    Outcome,
    Settings,
    Share,
    StepResult,
    Strategy,
    Work,
)
from parallel.sums import sums
from parallel.world import World, join, use_deterministic_algorithms, whoami

STRATEGIES: dict[str, type[Strategy]] = {
    "single": Single,
    "data_parallel": DataParallel,
    "ddp": DDP,
    "fsdp": FSDP,
    "pipeline": Pipeline,
    "model_parallel": ModelParallel,
}

__all__ = [
    "DDP",
    "FSDP",
    "STRATEGIES",
    "Batch",
    "DataParallel",
    "DisagreementError",
    "Engine",
    "EngineState",
    "ModelParallel",
    "Objective",
    "Outcome",
    "PeerLeftError",
    "Phases",
    "Pipeline",
    "Place",
    "Settings",
    "Share",
    "Single",
    "StepResult",
    "Strategy",
    "UsageError",
    "Work",
    "World",
    "WorldError",
    "find_device",
    "join",
    "leave",
    "peer_left",
    "sums",
    "use_deterministic_algorithms",
    "whoami",
]
