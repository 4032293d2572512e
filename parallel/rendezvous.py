"""How processes first find each other: a key-value store that all of them reach."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import torch.distributed as dist

from parallel.errors import WorldError
from parallel.place import Place

ROLL_CALL_S = 60.0  # at most, where no launcher watches over the processes
REFUSED_S = 3.0  # torchrun's store is there before its processes: refused for so long, it is gone
SILENT_S = 5.0  # a wait that lasts longer is spoken of
ALONE = "unset RANK WORLD_SIZE LOCAL_RANK"
_REFUSED = (dist.DistNetworkError, dist.DistStoreError, RuntimeError)
log = logging.getLogger("parallel")


def open_store(place: Place, timeout_s: float) -> dist.Store:
    """Return the store of ``place``'s processes. Raises ``WorldError``, with the absent ranks."""
    if place.launcher == "torchrun":  # the agent keeps the store, and watches over absent ranks
        if place.address is not None:
            _require_launcher(place)
        opened = next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=timeout_s))))
        return _part_of_this_attempt(opened[0], place, timeout_s)
    wait_s = min(ROLL_CALL_S, timeout_s)
    store = _serve(place, wait_s) if place.rank == 0 else _find_rank_0(place, wait_s)
    _call_the_roll(store, place, wait_s)
    return store


def _require_launcher(place: Place) -> None:
    """Raise ``WorldError`` where torchrun has ended meanwhile: torch would knock for minutes."""
    if not _wait(lambda: not _is_refused(place), list, place, REFUSED_S):
        raise WorldError(
            f"torchrun is gone: its store at {_at(place)} answers no more; start it again"
        )


def _is_refused(place: Place) -> bool:
    at = str(place.address), int(place.port or 0)
    try:
        socket.create_connection(at, timeout=1.0).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False  # torch is more patient with a network than we are
    return False


def _part_of_this_attempt(store: dist.Store, place: Place, timeout_s: float) -> dist.Store:
    """Return a part of the launcher's store that no earlier attempt has written to. Collective.

    torchrun keeps one store over all its restarts, with the addresses and failures of processes
    that are gone; its count of restarts differs from node to node. So each process leaves a name
    that is new, rank 0 lists those it finds until all have answered, and a list that holds a
    process's own name can only be of this attempt: it is known by rank 0's name.
    """
    mine, names = uuid4().hex, [f"launch/here/{rank}" for rank in range(place.size)]
    first = [mine]
    store.set(names[place.rank], mine)

    def answers() -> list[str]:
        return [f"launch/{mine}/{rank}" for rank in range(1, place.size)]

    def all_answered() -> bool:
        listed = [store.get(name).decode() if store.check([name]) else "" for name in names]
        store.set("launch/list", json.dumps(listed))
        return place.size == 1 or store.check(answers())

    def is_listed() -> bool:
        listed = json.loads(store.get("launch/list")) if store.check(["launch/list"]) else []
        if mine not in listed:
            return False
        first[0] = listed[0]
        store.set(f"launch/{first[0]}/{place.rank}", "")
        return True

    def absent() -> list[str]:
        if place.rank:
            return ["0"]
        return [str(rank) for rank, key in enumerate(answers(), 1) if not store.check([key])]

    try:
        met = _wait(is_listed if place.rank else all_answered, absent, place, timeout_s)
        late = [] if met else absent()
    except _REFUSED:
        raise WorldError(f"torchrun's store at {_at(place)} is gone; start it again") from None
    if late:
        raise WorldError(f"after {timeout_s:g} s rank {', '.join(late)} had not come: see its node")
    return dist.PrefixStore(f"launch/{first[0]}", store)


def _serve(place: Place, wait_s: float) -> dist.Store:
    try:
        return _tcp_store(place, wait_s)
    except _REFUSED as error:
        raise WorldError(
            f"rank 0 cannot listen on {_at(place)}: {first_line(error)}; "
            "choose a free port by MASTER_PORT, and check MASTER_ADDR"
        ) from None


def _find_rank_0(place: Place, wait_s: float) -> dist.Store:
    """Return rank 0's store; first knock at its door, as torch waits with the interpreter held."""
    try:
        if _wait(lambda: _listens(place), lambda: ["0"], place, wait_s):
            return _tcp_store(place, wait_s)
    except _REFUSED:
        pass  # somebody listens there, but it is no store
    raise WorldError(
        f"rank {place.rank} of {place.size} found nobody at {_at(place)} within {wait_s:g} s: is "
        "rank 0 started, and are MASTER_ADDR and MASTER_PORT the same for all? "
        f"To train in one process: {ALONE}"
    )


def _listens(place: Place) -> bool:
    at = str(place.address), int(place.port or 0)
    with suppress(OSError), socket.create_connection(at, timeout=1.0):
        return True
    return False


def _call_the_roll(store: dist.Store, place: Place, wait_s: float) -> None:
    """Wait until every rank has been here; else say who has not."""
    keys = [f"launch/here/{rank}" for rank in range(place.size)]

    def absent() -> list[str]:
        return [str(rank) for rank, key in enumerate(keys) if not store.check([key])]

    try:
        store.set(keys[place.rank], "")
        late = [] if _wait(lambda: store.check(keys), absent, place, wait_s) else absent()
    except _REFUSED:
        raise WorldError(
            f"rank 0 at {_at(place)} left before all {place.size} processes had come; "
            "it says why, where it runs"
        ) from None
    if late:
        raise WorldError(
            f"WORLD_SIZE={place.size} promises {place.size} processes, but after {wait_s:g} s "
            f"rank {', '.join(late)} had not come; start them, or {ALONE} to train in one process"
        )


def _wait(
    is_over: Callable[[], bool], absent: Callable[[], list[str]], place: Place, wait_s: float
) -> bool:
    """Return whether ``is_over`` became true within ``wait_s``; say once who is ``absent``.

    Asked again and again: of a wait that is in vain the store would print lines of its own.
    """
    start, pause_s, is_told = time.monotonic(), 0.01, False
    while not is_over():
        waited_s = time.monotonic() - start
        if waited_s > wait_s:
            return False
        if waited_s > SILENT_S and not is_told:
            is_told = True
            _say_waiting(place, absent(), wait_s)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.2)
    return True


def _say_waiting(place: Place, absent: list[str], wait_s: float) -> None:
    """Say once whom this rank waits for: variables left over from another job look like this."""
    hint = f"start what is absent, or stop and `{ALONE}` to train in one process"
    if place.launcher == "torchrun":
        hint = "torchrun watches over them"
    elif place.launcher == "srun":
        hint = "these tasks of the step have not begun, or take long to import"
    who, at = ", ".join(absent), f"of {place.size} at {_at(place)}, for up to {wait_s:g} s"
    log.warning("rank %d is waiting for rank %s %s: %s", place.rank, who, at, hint)


def _tcp_store(place: Place, wait_s: float) -> dist.Store:
    address, port, is_server = str(place.address), int(place.port or 0), place.rank == 0
    return dist.TCPStore(address, port, None, is_server, timedelta(seconds=wait_s), False)


def _at(place: Place) -> str:
    return f"{place.address}:{place.port}"


def first_line(error: BaseException) -> str:
    """Return the first line of what ``error`` says."""
    return str(error).strip().partition("\n")[0]
