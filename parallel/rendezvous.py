"""How processes first find each other: a key-value store that all of them reach."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from parallel.errors import WorldError
from parallel.place import Place

ROLL_CALL_S = 60.0  # where no launcher watches over the processes


def open_store(place: Place, timeout_s: float) -> dist.Store:
    """Return the store of ``place``'s processes. Raises ``WorldError``, with the absent ranks."""
    if place.launcher == "torchrun":  # the agent keeps the store, and watches over absent ranks
        opened = next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=timeout_s))))
        store: dist.Store = opened[0]
        return store
    at = f"{place.address}:{place.port}"
    deadline = timedelta(seconds=ROLL_CALL_S)
    try:
        server = dist.TCPStore(
            str(place.address), int(place.port or 0), None, place.rank == 0, deadline, False
        )
    except (dist.DistNetworkError, dist.DistStoreError, RuntimeError) as error:
        if place.rank == 0:
            raise WorldError(
                f"rank 0 cannot listen on {at}: {first_line(error)}; "
                "choose a free port by MASTER_PORT, and check MASTER_ADDR"
            ) from None
        raise WorldError(
            f"rank {place.rank} of {place.size} found nobody at {at} within {ROLL_CALL_S:g} s: is "
            "rank 0 started, and are MASTER_ADDR and MASTER_PORT the same for all? "
            "To train in one process: unset RANK WORLD_SIZE LOCAL_RANK"
        ) from None
    _call_the_roll(server, place, deadline)
    return server


def _call_the_roll(store: dist.Store, place: Place, deadline: timedelta) -> None:
    """Wait until every rank has been here; else say who has not."""
    keys = [f"launch/here/{rank}" for rank in range(place.size)]
    store.set(keys[place.rank], "")
    try:
        store.wait(keys, deadline)
    except (dist.DistStoreError, RuntimeError):
        absent = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        raise WorldError(
            f"WORLD_SIZE={place.size} promises {place.size} processes, but after "
            f"{deadline.total_seconds():g} s rank {', '.join(absent)} had not come; start them, or "
            "unset RANK WORLD_SIZE LOCAL_RANK to train in one process"
        ) from None


def first_line(error: BaseException) -> str:
    """Return the first line of what ``error`` says."""
    return str(error).strip().partition("\n")[0]
