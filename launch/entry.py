"""How every entry point starts and ends its process: one message for a mistake, then at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import NoReturn

from launch.ending import RunFailedError
from launch.failures import describe, trace_of, words_of
from parallel import Place, UsageError, WorldError, leave, whoami

PATIENCE_S = 5.0  # a launcher that ends the others once one has failed does so well within this


def enter(main: Callable[[list[str]], int]) -> NoReturn:
    """Run ``main`` on the command line's words and leave with its exit code.

    0: done. 1: failed. 2: a mistake in what was asked for. 75: stopped, to be called again.
    130: interrupted before the run began, or twice.
    """
    try:
        code = main(sys.argv[1:])
    except RunFailedError as error:
        code = error.code
    except UsageError as error:
        code = 2
        _say_once(words_of(error))
    except KeyboardInterrupt:
        code = 130
    except (Exception, SystemExit) as error:  # before the ranks met: nobody has said it yet
        code = 1
        place = _place()
        failure = describe(error, place.rank, 0)
        _say_once(trace_of(error) + failure.text(place.size))
    leave(code)


def _say_once(text: str) -> None:
    """Let rank 0 speak for all: the others speak if they are still there after a while.

    Under torchrun a mistake ends each of its attempts, and is said in the first.
    """
    place = _place()
    if place.rank:
        time.sleep(PATIENCE_S)
    if place.scratch and not _is_first(Path(place.scratch), text):
        return
    if place.rank:
        text = f"rank {place.rank}: {text}"
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _is_first(scratch: Path, text: str) -> bool:
    """Whether nobody on this node has said ``text`` yet; from now on somebody has."""
    mark = scratch / f"said-{blake2b(text.encode(), digest_size=8).hexdigest()}"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # said too often is better than never
        return True
    return True


def _place() -> Place:
    try:
        return whoami()
    except WorldError:
        return Place()
