"""Which device and which cores of its node a process trains on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from parallel.errors import WorldError
from parallel.place import Place


def find_device(
    place: Place, device: str = "auto", backend: str = "auto"
) -> tuple[torch.device, str]:
    """Return the device this process owns and the backend for it. Raises ``WorldError``.

    One visible device a task (``srun --gpus-per-task=1``) is device 0 for every task; torchrun's
    processes all see the same devices, so there must be one for each.
    """
    count = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    visible = f" (CUDA_VISIBLE_DEVICES={place.visible})" if place.visible else ""
    seen = f"torch sees {count} GPUs{visible}"
    if device == "cuda" and not count:
        wanted = "launch.device=cuda wants a GPU"
        raise WorldError(f"{wanted}, but {seen}; use launch.device=cpu or auto")
    if backend == "nccl" and not count:
        wanted = "launch.backend=nccl needs a GPU for each process"
        raise WorldError(f"{wanted}, but {seen}; use launch.backend=auto (gloo on a CPU)")
    if not count:
        return torch.device("cpu"), "gloo" if backend == "auto" else backend
    own = count == 1 and place.launcher in ("srun", "by hand")
    if not own and place.local_size > count:
        raise WorldError(
            f"{place.local_size} processes on this node want a GPU each, but {seen}; "
            f"use --nproc_per_node={count}, or launch.device=cpu"
        )
    index = 0 if own else place.local_rank
    return torch.device("cuda", index), "nccl" if backend == "auto" else backend


def cores_for(place: Place) -> list[int]:
    """Return the process's fair share of the cores it may use; empty if there are too few."""
    if not hasattr(os, "sched_getaffinity"):  # not on macOS
        return []
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // place.local_size
    return cores[place.local_rank * share : (place.local_rank + 1) * share]


@contextmanager
def own_cores(place: Place) -> Iterator[None]:
    """Keep this thread, and those it starts, to the process's share of the cores.

    Threads of the process group began before and stay free: a step that mostly waits for messages
    took 0.80x the time. srun binds by itself, and is left to it.
    """
    own = cores_for(place)
    if not own or place.local_size == 1 or place.launcher == "srun":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, own)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
