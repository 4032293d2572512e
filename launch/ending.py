"""How a run that fails ends on all ranks: the first to fail is named, and speaks last."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from launch.failures import Failure, describe, trace_of, words_of
from launch.processes import Owner
from launch.waiting import of_stopped, of_waiting, stopped_ranks, waited_s
from parallel import Place, World, peer_left

STOPPED = 75  # EX_TEMPFAIL of sysexits(3)
LINGER_S = 5.0  # the launcher ends the others once the first has left; it must see that one first
log = logging.getLogger("launch")


class RunFailedError(Exception):
    """A run failed on some rank; ``code`` is this process's exit code.

    words: what this rank has to say of it on the screen: nothing, but on the first that failed.
    """

    def __init__(self, failure: Failure, is_first: bool, words: str = "") -> None:
        super().__init__(failure.reason)
        self.failure, self.is_first, self.words = failure, is_first, words
        self.code = 2 if failure.is_usage else 1


def settle(error: BaseException, world: World, step: int, peers: Sequence[Owner]) -> RunFailedError:
    """Agree on which rank failed first: it will say so on the screen, the others nothing."""
    mine, notes = describe(error, world.rank, step), world.notes
    log.info("rank %d failed after step %d", world.rank, step, exc_info=error)
    waited = waited_s(error)
    stopped = stopped_ranks(world.rank, peers) if waited is not None else []
    if waited is not None and stopped:
        mine = of_stopped(mine, waited, stopped, peers)
        if stopped[0] == 0 and world.launcher != "torchrun":  # the store lives there, and is silent
            return _first_left(mine, world, stopped)
    elif waited is not None or "imed out" in mine.message:
        hung = notes.reported_hang()
        if hung:  # the rank that hangs has left word, and speaks once it sees this
            return RunFailedError(Failure.from_json(notes.report_failure(hung)), is_first=False)
        busy = notes.announced()
        if busy:
            mine = replace(mine, advice=f"{busy}: if that may take longer, raise launch.timeout_s")
        mine = of_waiting(mine, waited) if waited is not None else mine
    if peer_left(error):
        return _after_a_peer(mine, world, peers)
    first = Failure.from_json(notes.report_failure(mine.to_json()))
    if first != mine:
        return RunFailedError(first, is_first=False)
    words = mine.text(world.size)
    if waited is not None:  # where it waited is no news, and torch's words say less than ours
        error = RuntimeError(mine.reason)
    elif not mine.is_plain:
        words = trace_of(error) + words
    if not mine.is_usage:
        _record(error)
    return RunFailedError(mine, True, words)


def _record(error: BaseException) -> None:
    """Let torchrun show ``error`` as the root cause."""
    handler = get_error_handler()
    try:
        handler.record_exception(error)
    except Exception:  # one that cannot be told: its __str__ raises
        handler.record_exception(RuntimeError(f"{type(error).__name__}: {words_of(error)}"))


def _after_a_peer(mine: Failure, world: World, peers: Sequence[Owner]) -> RunFailedError:
    """Return the end of a rank that only met another's: in the words which that one left, if any.

    Where it left none, the first of those that remain speaks for all.
    """
    said = world.notes.first_failure(wait_s=2.0)
    if said:
        return RunFailedError(Failure.from_json(said), is_first=False)
    host = peers[world.rank].host
    gone = [r for r, peer in enumerate(peers) if peer.host == host and not peer.is_alive()]
    failure = Failure(
        rank=gone[0] if gone else -1,
        kind=f"rank {gone[0]} left without a word" if gone else "another rank left without a word",
        message="killed from outside, out of memory, or ended by os._exit",
        at="",  # ours is where we waited for it
        advice="the launcher's table and the files in ranks/ say more",
        step=mine.step,
    )
    return _first_left(failure, world, gone)


def _first_left(failure: Failure, world: World, gone: Sequence[int]) -> RunFailedError:
    """Return the end of a rank where the first of those that are left speaks for all."""
    speaks = world.rank == min(set(range(world.size)) - set(gone))
    return RunFailedError(failure, False, failure.text(world.size) if speaks else "")


def stopped_code(place: Place) -> int:
    """Return the exit code of a run that was stopped and can go on: 75, "call me again".

    torchrun makes 1 of all but 0, as if the run had failed; status.json tells there.
    """
    return STOPPED if place.agent or place.launcher != "torchrun" else 0


def say_and_linger(error: RunFailedError, world: World) -> None:
    """Leave in the right order: the first to fail goes first, once rank 0 has written it down."""
    if world.is_main:  # its files are closed by now, and its lock is gone
        world.notes.acknowledge_failure()
    elif error.is_first:
        world.notes.await_acknowledgement(wait_s=3.0)
    if error.words:  # a rank's own sys.stderr may go to its file
        stream = sys.__stderr__ or sys.stderr
        stream.write(error.words + "\n")
        stream.flush()
    if not error.is_first and world.launcher == "torchrun":
        time.sleep(LINGER_S)
    elif world.is_main and world.size > 1:
        time.sleep(0.3)  # the store lives here, and the others still read in it
