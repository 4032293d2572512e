"""What each rank says for itself: ``ranks/rank-N.log`` in the run folder."""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from parallel import World

FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"
ODD = "backslashreplace"  # what is printed may be a name or an error that is no valid text


@contextmanager
def rank_log(folder: Path, world: World) -> Iterator[None]:
    """Send logging and fatal signals to the rank's file; on all ranks but 0 prints as well.

    Rank 0's warnings go on to the terminal too, as they would without a file.
    """
    folder.mkdir(parents=True, exist_ok=True)  # rank 0 may not have come this far
    path = folder / f"rank-{world.rank}.log"
    with ExitStack() as stack:
        file = stack.enter_context(path.open("a", encoding="utf-8", errors=ODD, buffering=1))
        _log_to(logging.StreamHandler(file), logging.NOTSET, stack)
        if world.is_main:
            _log_to(logging.StreamHandler(), logging.WARNING, stack)
        else:
            stack.enter_context(redirect_stdout(file))
            stack.enter_context(redirect_stderr(file))
        was_enabled = faulthandler.is_enabled()
        faulthandler.enable(file)
        stack.callback(faulthandler.enable if was_enabled else faulthandler.disable)
        log = logging.getLogger("launch")
        log.setLevel(logging.INFO)
        at = f"{socket.gethostname()}, pid {os.getpid()}, {world.device}"
        log.info("rank %d of %d on %s", world.rank, world.size, at)
        yield


def _log_to(handler: logging.Handler, level: int, stack: ExitStack) -> None:
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.setLevel(level)
    root = logging.getLogger()
    root.addHandler(handler)
    stack.callback(root.removeHandler, handler)
