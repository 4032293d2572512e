"""How every entry point starts and ends its process: one message for a mistake, then at once."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from launch.ending import RunFailedError
from launch.failures import describe
from parallel import UsageError, WorldError, leave, whoami

PATIENCE_S = 5.0  # a launcher that ends the others once one has failed does so well within this


def enter(main: Callable[[list[str]], int]) -> NoReturn:
    """Run ``main`` on the command line's words and leave with its exit code.

    0: done. 1: failed. 2: a mistake in what was asked for. 130: interrupted.
    """
    try:
        code = main(sys.argv[1:])
    except RunFailedError as error:
        code = error.code
    except UsageError as error:
        code = 2
        _say_once(str(error))
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # before the ranks met: nobody has said it yet
        code = 1
        failure = describe(error, _rank(), 0)
        _say_once("".join(traceback.format_exception(error)) + failure.text(1))
    leave(code)


def _say_once(text: str) -> None:
    """Let rank 0 speak for all: the others speak if they are still there after a while."""
    rank = _rank()
    if rank:
        time.sleep(PATIENCE_S)
        text = f"rank {rank}: {text}"
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _rank() -> int:
    try:
        return whoami().rank
    except WorldError:
        return 0
