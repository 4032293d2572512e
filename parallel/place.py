"""Which process this is, told from a mapping of environment variables.

    torchrun's variables  >  a SLURM step of several tasks  >  RANK and friends by hand  >  alone

Under ``srun torchrun`` the SLURM rank is the node's, so torchrun's variables are asked first. A
batch script itself has SLURM_PROCID=0 and SLURM_NTASKS=n without being one of n: only
SLURM_STEP_ID tells that srun started us.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from parallel.errors import WorldError

BY_HAND = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
START = "start it by `torchrun --nproc_per_node=2 -m launch.train ...`"


@dataclass(frozen=True)
class Place:
    """Rank ``rank`` of ``size`` processes, the ``local_rank``-th of ``local_size`` on its node."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "alone"  # alone | torchrun | srun | by hand
    address: str | None = None  # of the store: rank 0's, or torchrun's where it keeps one
    port: int | None = None
    visible: str | None = None  # CUDA_VISIBLE_DEVICES, for messages
    job: str | None = None  # what the launcher calls this job, alike over its restarts
    scratch: str | None = None  # a folder that torchrun keeps over its restarts, on each node
    agent: bool = False  # whether launch.agent started us, which hands our exit codes on

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.size and 0 <= self.local_rank < self.local_size <= self.size):
            raise WorldError(
                f"rank {self.rank} of {self.size} processes, local rank {self.local_rank} of "
                f"{self.local_size}, cannot be: the variables that {self.launcher!r} set "
                f"contradict each other; unset them, or {START}"
            )


def find_place(environ: Mapping[str, str]) -> Place:
    """Return this process's place. Raises ``WorldError`` on partial or left-over variables."""
    run_id, slurm_job = environ.get("TORCHELASTIC_RUN_ID"), environ.get("SLURM_JOB_ID")
    error_file = environ.get("TORCHELASTIC_ERROR_FILE", "")  # SCRATCH/attempt_N/RANK/error.json
    return replace(
        _find(environ),
        visible=environ.get("CUDA_VISIBLE_DEVICES"),
        job=run_id if run_id not in (None, "none") else slurm_job,  # "none" is torchrun's default
        scratch="/".join(error_file.split("/")[:-3]) or None,
        agent=environ.get("LAUNCH_AGENT") == "1",
    )


def _find(environ: Mapping[str, str]) -> Place:
    if "TORCHELASTIC_RUN_ID" in environ:
        keeps_store = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return Place(
            rank=_number(environ, "RANK"),
            size=_number(environ, "WORLD_SIZE"),
            local_rank=_number(environ, "LOCAL_RANK"),
            local_size=_number(environ, "LOCAL_WORLD_SIZE"),
            launcher="torchrun",
            address=environ.get("MASTER_ADDR") if keeps_store else None,
            port=_number(environ, "MASTER_PORT") if keeps_store else None,
        )
    if "SLURM_STEP_ID" in environ and _number(environ, "SLURM_STEP_NUM_TASKS", "1") > 1:
        return _slurm(environ)
    met = [name for name in BY_HAND if environ.get(name)]
    if len(met) == len(BY_HAND):
        return _by_hand(environ)
    identity = [name for name in met if name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    if identity and not (environ.get("WORLD_SIZE") == "1" and environ.get("RANK", "0") == "0"):
        raise WorldError(
            f"{', '.join(f'{name}={environ[name]}' for name in identity)} is set, but not "
            f"{', '.join(n for n in BY_HAND if n not in met)}: left over from another job? "
            f"`unset {' '.join(identity)}` to train in one process, or {START}"
        )
    return Place()


def _slurm(environ: Mapping[str, str]) -> Place:
    """A task of a step; SLURM_STEP_* describe the step, where the others still mean the job."""
    nodes = _number(environ, "SLURM_STEP_NUM_NODES", "1")
    tasks = _tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node, size = _number(environ, "SLURM_NODEID", "0"), _number(environ, "SLURM_STEP_NUM_TASKS")
    first = "127.0.0.1" if nodes == 1 else _first_host(environ.get("SLURM_STEP_NODELIST", ""))
    job, step = _number(environ, "SLURM_JOB_ID", "0"), _number(environ, "SLURM_STEP_ID", "0")
    return Place(
        rank=_number(environ, "SLURM_PROCID"),
        size=size,
        local_rank=_number(environ, "SLURM_LOCALID"),
        local_size=tasks[node] if node < len(tasks) else size,
        launcher="srun",
        address=environ.get("MASTER_ADDR") or first,
        # below Linux's ephemeral ports, apart for neighbouring jobs and for steps of one job
        port=_number(environ, "MASTER_PORT", str(20000 + (job * 64 + step % 64) % 12000)),
    )


def _by_hand(environ: Mapping[str, str]) -> Place:
    size, local_rank = _number(environ, "WORLD_SIZE"), _number(environ, "LOCAL_RANK")
    one_node = environ["MASTER_ADDR"] in ("localhost", "127.0.0.1")
    local_size = _number(environ, "LOCAL_WORLD_SIZE", str(size if one_node else local_rank + 1))
    return Place(
        rank=_number(environ, "RANK"),
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        launcher="by hand",
        address=environ["MASTER_ADDR"],
        port=_number(environ, "MASTER_PORT"),
    )


def _number(environ: Mapping[str, str], name: str, default: str | None = None) -> int:
    text = environ.get(name, default)
    if text is None or not re.fullmatch(r"\d+", text):
        met = "is not set" if text is None else f"is {text!r}"
        raise WorldError(f"{name} {met} where a number is wanted; {START}")
    return int(text)


def _tasks_per_node(text: str) -> list[int]:
    """``2(x2),1`` -> [2, 2, 1], as SLURM_STEP_TASKS_PER_NODE writes it."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in found for _ in range(int(times or 1))]


def _first_host(nodelist: str) -> str:
    """``n[03-04,7],login`` -> n03, as SLURM writes lists of hosts."""
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", nodelist).partition(",")[0]
