"""How several ranks write one checkpoint: each its shard, and rank 0 what makes it whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic

from launch.checkpoint import manifest
from launch.checkpoint.files import Contents, begin, complete, place
from launch.checkpoint.links import CheckpointError
from launch.checkpoint.shards import Shard, refuse_incomplete, unite, write_shard
from parallel import World

LEAVING_S = 5.0  # for shards of ranks that may be gone: enough for what is nearly written
LOOK_S = 0.2  # between two looks at whether this rank is about to leave


class Together:
    """One rank's part in writing; every rank has one, and calls it in the same order.

    timeout_s: how long rank 0 waits for another's shard.
    """

    def __init__(self, world: World, timeout_s: float) -> None:
        self.world, self._timeout_s = world, timeout_s
        self._count = 0  # of checkpoints begun: tells those of one step apart
        self._unready: CheckpointError | None = None
        self._leave_at = math.inf

    def begin(self, folder: Path, step: int, check: Callable[[], None]) -> None:
        """Make room for the shards, on rank 0; the others may write after the next collective.

        check: raises where ``folder`` must not be written to.
        """
        self._count, self._unready = self._count + 1, None
        if self.world.is_main:
            try:
                check()
                begin(folder, step)
            except Exception as error:  # raised by ``write``, where the others have come, too
                self._unready = CheckpointError(str(error))

    def write(
        self, folder: Path, step: int, contents: Contents | CheckpointError, in_thread: bool
    ) -> Path | None:
        """Write this rank's shard; on rank 0, wait for all, and return the whole checkpoint.

        Collective, unless it is done ``in_thread``, where no collective may be. Raises
        ``CheckpointError`` on rank 0 alone.
        """
        if not self.world.is_main:
            self._gather(write_shard(folder, self.world.rank, contents), step, in_thread)
            return None
        if self._unready is not None:
            self._gather(Shard(0), step, in_thread)
            raise self._unready
        fill = partial(self._fill, folder, step, contents, in_thread)
        return complete(folder, step, fill)

    def leave(self) -> None:
        """Let rank 0 wait no longer than ``LEAVING_S`` from now: the others may be gone."""
        self._leave_at = monotonic() + LEAVING_S

    def _fill(
        self,
        folder: Path,
        step: int,
        contents: Contents | CheckpointError,
        in_thread: bool,
        part: Path,
    ) -> manifest.Entries:
        shards = self._gather(write_shard(folder, 0, contents), step, in_thread)
        refuse_incomplete(place(folder, step), shards)
        if isinstance(contents, CheckpointError):
            raise contents
        return unite(part, shards, contents)

    def _gather(self, own: Shard, step: int, in_thread: bool) -> list[Shard]:
        """Return all shards, by rank; in a thread, on rank 0 only."""
        if not in_thread:
            return self.world.gather_objects(own)
        if not self.world.is_main:
            self.world.notes.leave(self._key(step, own.rank), own.to_json())
            return []
        return [own, *(self._await(step, rank) for rank in range(1, self.world.size))]

    def _await(self, step: int, rank: int) -> Shard:
        start, key = monotonic(), self._key(step, rank)
        while True:
            text = self.world.notes.take(key, wait_s=LOOK_S)
            if text is not None:
                return Shard.from_json(text)
            if monotonic() > min(start + self._timeout_s, self._leave_at):
                waited = f"{monotonic() - start:.0f} s (launch.timeout_s)"
                return Shard(rank, problem=f"its shard did not come within {waited}")

    def _key(self, step: int, rank: int) -> str:
        return f"shard/{self._count}/{step}/{rank}"
