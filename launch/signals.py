"""Signals that ask a run to save and stop, heard even while the main thread waits in C++.

A handler in Python runs only when the main thread is back from C++, so a rank that waits for
another would hear nothing. The interpreter writes each signal's number to a socket at once, and a
thread reads it there; that thread also looks after what else must be seen to every second.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
INTERRUPTED = 130  # the exit code of a process that SIGINT ended, as shells count


class Signals:
    """What this process was told: ``last`` is a signal's number, 0 for none."""

    def __init__(self) -> None:
        self.last = 0
        self._interrupts = 0
        self._checks: list[Callable[[], None]] = []

    def every_second(self, check: Callable[[], None]) -> None:
        """Let the thread call ``check`` about once a second."""
        self._checks.append(check)

    def no_more(self, check: Callable[[], None]) -> None:
        """Take back what ``every_second`` was asked."""
        self._checks.remove(check)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Take signals in; afterwards they mean what they meant before."""
        ears, mouth = socket.socketpair()
        with ExitStack() as stack:
            for end in (ears, mouth):
                stack.callback(end.close)
                end.setblocking(False)
            if threading.current_thread() is threading.main_thread():
                before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
                stack.callback(signal.set_wakeup_fd, before)
                for number in STOPPING:  # what is ignored stays so: nohup, a shell's background
                    if signal.getsignal(number) is not signal.SIG_IGN:
                        stack.callback(signal.signal, number, signal.signal(number, self._note))
            over = threading.Event()
            thread = threading.Thread(target=self._listen, args=(ears, over), daemon=True)
            thread.start()
            stack.callback(thread.join, 2.0)
            stack.callback(mouth.send, b"\0")  # no signal: it only wakes the thread
            stack.callback(over.set)
            yield

    def _note(self, number: int, frame: object) -> None:
        """Take a signal in later, in the main thread: asyncio may have taken the socket away."""
        self.last = number

    def _listen(self, ears: socket.socket, over: threading.Event) -> None:
        while not over.is_set():
            if select.select([ears], [], [], 0.5)[0]:
                for number in ears.recv(64):
                    self._take(number)
            for check in tuple(self._checks):
                check()

    def _take(self, number: int) -> None:
        if number not in STOPPING:
            return
        self.last = number
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            say("interrupted twice: left at once; what was saved before is whole")
            os._exit(INTERRUPTED)


def say(text: str) -> None:
    """Write a last line to the terminal, from the thread of a process that is about to end."""
    with suppress(OSError, ValueError):
        if sys.__stderr__ is not None:
            sys.__stderr__.write(text + "\n")
            sys.__stderr__.flush()
