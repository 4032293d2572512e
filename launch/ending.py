"""How a run that fails ends on all ranks: the first to fail is named, and speaks last."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from dataclasses import replace

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from launch.failures import Failure, describe
from parallel import World, peer_left

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


def settle(error: Exception, world: World, step: int) -> RunFailedError:
    """Agree on which rank failed first: it will say so on the screen, the others nothing."""
    mine = describe(error, world.rank, step)
    busy = world.announced() if "imed out" in mine.message else ""
    if busy:
        mine = replace(mine, advice=f"{busy}: if that may take longer, raise launch.timeout_s")
    log.info("rank %d failed after step %d", world.rank, step, exc_info=error)
    if peer_left(error):
        said = world.first_failure(wait_s=2.0)
        failure = Failure.from_json(said) if said else _silent_peer(mine)
        speaks = said is None and world.is_main
        return RunFailedError(failure, False, failure.text(world.size) if speaks else "")
    first = Failure.from_json(world.report_failure(mine.to_json()))
    if first != mine:
        return RunFailedError(first, is_first=False)
    words = mine.text(world.size)
    if not mine.is_plain:
        words = "".join(traceback.format_exception(error)) + words
    if not mine.is_usage:
        get_error_handler().record_exception(error)  # torchrun shows it as the root cause
    return RunFailedError(mine, True, words)


def say_and_linger(error: RunFailedError, world: World) -> None:
    """Leave in the right order: the first to fail goes first, once rank 0 has written it down."""
    if world.is_main:  # its files are closed by now, and its lock is gone
        world.acknowledge_failure()
    elif error.is_first:
        world.await_acknowledgement(wait_s=3.0)
    if error.words:  # a rank's own sys.stderr may go to its file
        stream = sys.__stderr__ or sys.stderr
        stream.write(error.words + "\n")
        stream.flush()
    if not error.is_first and world.launcher == "torchrun":
        time.sleep(LINGER_S)


def _silent_peer(mine: Failure) -> Failure:
    return Failure(
        rank=-1,
        kind="another rank left without a word",
        message="killed from outside, out of memory, or ended by sys.exit",
        at=mine.at,
        advice="the launcher's table and the files in ranks/ say which",
        step=mine.step,
    )
