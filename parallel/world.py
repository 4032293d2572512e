"""The processes that train together, and this one's place among them.

The only file of the project that asks the environment who we are, and that opens and closes the
process group.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from parallel.devices import cores_for, find_device, own_cores
from parallel.errors import WorldError
from parallel.notes import Notes
from parallel.place import Place, find_place
from parallel.rendezvous import first_line, open_store

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """``size`` processes numbered ``0 <= rank < size``; this one owns ``device``.

    Every method down to ``barrier`` is collective: all ranks call it, in the same order; in a
    world of one it is the identity.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    backend: str | None = None  # None in a world of one
    launcher: str = "alone"
    store: dist.Store | None = field(default=None, repr=False, compare=False)
    timeout_s: float = 600.0  # how long a collective waits for the others
    group: dist.ProcessGroup | None = field(default=None, repr=False, compare=False)  # None: all

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """Return ``value`` summed over the ranks, in place."""
        return self.sum_later(value)()

    def sum_later(self, value: Tensor) -> Callable[[], Tensor]:
        """Start what ``sum`` does; what is returned waits for it, and is no collective."""
        if self.size == 1:
            return lambda: value
        work = dist.all_reduce(value, group=self.group, async_op=True)

        def wait() -> Tensor:
            work.wait()
            return value

        return wait

    def gather(self, row: Tensor) -> Tensor:
        """Return every rank's ``row`` [...], stacked: [size, ...]."""
        return self.gather_later(row)()

    def gather_later(self, row: Tensor) -> Callable[[], Tensor]:
        """Start what ``gather`` does; what is returned waits for it, and is no collective."""
        if self.size == 1:
            return lambda: row.unsqueeze(0)
        rows = [torch.empty_like(row) for _ in range(self.size)]
        work = dist.all_gather(rows, row.contiguous(), group=self.group, async_op=True)

        def wait() -> Tensor:
            work.wait()
            return torch.stack(rows)

        return wait

    def gather_objects(self, value: T) -> list[T]:
        """Return every rank's ``value``, by rank."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values  # type: ignore[return-value]  # filled by now

    def share(self, value: T) -> T:
        """Return rank 0's ``value``: how a decision is taken once."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, group=self.group, group_src=0, device=self.device)
        return values[0]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite ``tensors`` by rank 0's."""
        if self.size > 1:
            dense = [t.detach().contiguous() for t in tensors]  # gloo reads over strides
            for work in [
                dist.broadcast(tensor, group=self.group, group_src=0, async_op=True)
                for tensor in dense
            ]:
                work.wait()
            for tensor, own in zip(tensors, dense, strict=True):
                if own.data_ptr() != tensor.data_ptr():
                    tensor.detach().copy_(own)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            dist.barrier(group=self.group)

    def among(self, teams: Sequence[Sequence[int]], backend: str | None = None) -> World:
        """Return the world of the one of ``teams`` that this rank is in, numbered within it.

        teams: lists of ranks of the whole world, alike on all ranks. backend: this world's own.
        A team of one is the world of one. Collective over all ranks, in a team or not.
        """
        own: World | None = None
        for team in teams:
            group = None
            if len(team) > 1:
                limit = timedelta(seconds=self.timeout_s)
                group = dist.new_group(list(team), limit, backend)
            if self.rank in team:
                own = replace(
                    self,
                    rank=list(team).index(self.rank),
                    size=len(team),
                    backend=backend or self.backend,
                    group=group,
                )
        return own or replace(self, rank=0, size=1)

    @property
    def notes(self) -> Notes:
        """What ranks tell each other where a collective could not end any more."""
        return Notes(self.store, self.rank)


def whoami() -> Place:
    """Return this process's place, before it meets the others. Raises ``WorldError``."""
    return find_place(os.environ)


@contextmanager
def join(
    *,
    rank: int | None = None,
    size: int | None = None,
    store: str | None = None,
    device: str = "auto",
    backend: str = "auto",
    timeout_s: float = 600.0,
) -> Iterator[World]:
    """Meet the other processes; without a launcher, a world of one.

    rank, size, store: instead of the environment's; ``store`` is a path that all ranks can write.
    timeout_s: how long a collective waits for the others. Raises ``WorldError`` where the
    processes cannot meet. Collective.
    """
    if rank is not None and (size or 1) > 1 and store is None:
        raise WorldError(f"join(rank={rank}, size={size}) needs store=PATH, a file all ranks reach")
    place = whoami() if rank is None else Place(rank, size or 1, rank, size or 1, "by hand")
    own, chosen = find_device(place, device, backend)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    elif "OMP_NUM_THREADS" not in os.environ and place.local_size > 1:
        torch.set_num_threads(max(1, len(cores_for(place))))
    at = (place.rank, place.size, place.local_rank, place.local_size, own)
    if place.size == 1:
        yield World(*at, launcher=place.launcher)
        return
    meeting = dist.FileStore(store, place.size) if store else open_store(place, timeout_s)
    _open_group(place, meeting, own, chosen, timeout_s)
    try:
        with own_cores(place) if own.type == "cpu" else nullcontext():
            yield World(*at, chosen, place.launcher, meeting, timeout_s)
    finally:
        _close_group()


def _open_group(
    place: Place, store: dist.Store, device: torch.device, backend: str, timeout_s: float
) -> None:
    try:
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("launch", store),
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if device.type == "cuda" else None,
        )
    except RuntimeError as error:
        chosen = os.environ.get("GLOO_SOCKET_IFNAME")
        if chosen and "address" in str(error):
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise WorldError(
                f"GLOO_SOCKET_IFNAME={chosen} is no interface that gloo can use here "
                f"({first_line(error)}); this machine has {names}"
            ) from None
        raise


def _close_group() -> None:
    """Take the group down so that no thread of it meets a finalising interpreter.

    A gloo thread that destroys its last work needs the GIL for the Python objects it holds; if the
    interpreter is finalising by then, CPython ends that thread and C++ aborts the process. So what
    keeps the group alive is collected, and its threads get a moment with the GIL free.
    """
    failing = sys.exc_info()[0] is not None
    if failing and dist.get_backend() == "nccl":
        return  # destroying would wait for peers that never come; the process is about to end
    gc.collect()
    dist.destroy_process_group()
    if not failing:
        time.sleep(0.05)


def use_deterministic_algorithms() -> None:
    """Make torch use deterministic algorithms only, cuBLAS included."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
