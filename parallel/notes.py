"""What ranks tell each other through the store, where a collective could not end any more."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import torch.distributed as dist

_FAILURE, _NOTED, _BUSY, _HUNG = (f"launch/{word}" for word in ("failure", "noted", "busy", "hung"))


@dataclass(frozen=True)
class Notes:
    """One rank's access to what all can read. The store's host may be gone: then nothing is told.

    None of it is collective, and in a world of one nobody reads it.
    """

    store: dist.Store | None
    rank: int

    def report_failure(self, text: str) -> str:
        """Leave ``text`` where the other ranks find it; return what the first to do so left."""
        with suppress(RuntimeError, dist.DistError):
            if self.store is not None:
                return bytes(self.store.compare_set(_FAILURE, "", text)).decode()
        return text

    def first_failure(self, wait_s: float) -> str | None:
        """Return what the first failing rank left, waiting up to ``wait_s`` for it."""
        return self._get(_FAILURE, wait_s)

    def acknowledge_failure(self) -> None:
        """Tell the failing rank that it may leave: rank 0 has written down what it left."""
        self._set(_NOTED, "yes")

    def await_acknowledgement(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` for rank 0 to have written the failure down."""
        self._get(_NOTED, wait_s)

    def announce(self, what: str) -> None:
        """Tell ranks that may wait for this one what it does; empty: nothing any more."""
        self._set(_BUSY, f"rank {self.rank} {what}" if what else "")

    def announced(self) -> str:
        """Return what a rank announced that it does; empty: nothing."""
        return self._get(_BUSY, wait_s=0.1) or ""

    def report_hang(self, text: str) -> None:
        """Leave word that this rank seems to hang; empty: it goes on."""
        self._set(_HUNG, text)

    def reported_hang(self) -> str:
        """Return what a rank that seems to hang left; empty: none does."""
        return self._get(_HUNG, wait_s=0.1) or ""

    def leave(self, key: str, text: str) -> None:
        """Leave ``text`` for the one rank that will ``take`` it; ``key`` is used once."""
        self._set(f"launch/{key}", text)

    def take(self, key: str, wait_s: float) -> str | None:
        """Return what another rank left, and clear it away; waits up to ``wait_s`` for it."""
        text = self._get(f"launch/{key}", wait_s)
        if text is not None and self.store is not None:
            with suppress(RuntimeError, dist.DistError):
                self.store.delete_key(f"launch/{key}")
        return text

    def _set(self, key: str, text: str) -> None:
        if self.store is not None:
            with suppress(RuntimeError, dist.DistError):
                self.store.set(key, text)

    def _get(self, key: str, wait_s: float) -> str | None:
        deadline, pause_s = time.monotonic() + wait_s, 0.001
        with suppress(RuntimeError, dist.DistError):
            while self.store is not None:
                if self.store.check([key]):
                    return bytes(self.store.get(key)).decode()
                if time.monotonic() >= deadline:
                    break
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 0.05)
        return None
