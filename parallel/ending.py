"""How a process ends: at once when it is done, and without a word when only a peer is gone."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from multiprocessing import active_children
from typing import NoReturn

from parallel.errors import PeerLeftError, own_words


def leave(code: int) -> NoReturn:
    """End this process with ``code`` at once: exit hooks run, buffers are flushed, nothing else.

    Child processes are killed first: an exit hook waits for them, and they do not hear SIGTERM
    while they are busy. torch takes a loader process's end for a failure and raises it in whatever
    runs then, so that signal is taken off before. What lies behind is skipped: the interpreter's
    own teardown costs 0.7 s, and a thread of gloo's that outlives it aborts the process (see
    ``world._close_group``).
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in active_children():
        child.kill()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            continue  # a closed pipe has no reader to lose anything
    os._exit(code)


def peer_left(error: BaseException) -> bool:
    """Whether ``error`` only says that another rank is gone."""
    if isinstance(error, PeerLeftError):
        return True
    words = ("closed by peer", "reset by peer", "Broken pipe", "remote process exited", "aborted")
    said = own_words(error)
    return isinstance(error, RuntimeError) and any(word in said for word in words)
