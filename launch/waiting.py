"""What a rank says that waited for the others in vain: how long, and for whom where that shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from launch.failures import Failure
from launch.processes import Owner
from parallel.errors import own_words

WAITED = re.compile(r"(?:imed out waiting|imeout after|Timeout\(ms\)=) ?(\d+)")  # torch's words, ms


def waited_s(error: BaseException) -> float | None:
    """Return how long a collective waited for other ranks; None where ``error`` says no such."""
    found = WAITED.search(own_words(error)) if isinstance(error, RuntimeError) else None
    return int(found[1]) / 1000 if found else None


def stopped_ranks(rank: int, peers: Sequence[Owner]) -> list[int]:
    """Return the ranks on this rank's host that a signal keeps from running."""
    host = peers[rank].host
    return [r for r, peer in enumerate(peers) if peer.host == host and peer.is_stopped()]


def of_stopped(
    mine: Failure, seconds: float, ranks: Sequence[int], peers: Sequence[Owner]
) -> Failure:
    """Return the failure of ``ranks``, which were stopped, in the words of one that waited."""
    pids = [str(peers[rank].pid) for rank in ranks]
    others = f", as are ranks {', '.join(map(str, ranks[1:]))}" if ranks[1:] else ""
    return Failure(
        rank=ranks[0],
        kind="Stopped",
        message=f"process {pids[0]} on {peers[ranks[0]].host} is held by a signal (SIGSTOP, "
        f"Ctrl-Z){others}; the others waited {seconds:g} s for it",
        at="",
        advice=f"let it end by `kill -CONT {' '.join(pids)}`, and give the same command again",
        step=mine.step,
    )


def of_waiting(mine: Failure, seconds: float) -> Failure:
    """Return ``mine`` in words for people; torch's own are in the rank's log."""
    message = f"waited {seconds:g} s for the other ranks (launch.timeout_s), and one did not come"
    return replace(mine, kind="Timeout", message=message)
