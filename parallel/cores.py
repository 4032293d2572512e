"""Which cores of its node a process trains on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from parallel.place import Place


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
