"""How busy others kept the machine while a row took its turn."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic


class Watch:
    """Looks at the machine from now on.

    pids: processes that are ours, with those they started. Linux counts processor time in ticks
    (/proc/stat, /proc/PID/stat: proc(5)); elsewhere there is the load average of the last minute.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._start, self._before = monotonic(), _others(self._pids)

    def load(self) -> float:
        """Return how many cores were busy with other work since then."""
        after, seconds = _others(self._pids), monotonic() - self._start
        if self._before is None or after is None:
            return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        ticks_a_second = os.sysconf("SC_CLK_TCK")
        return max(0.0, (after - self._before) / ticks_a_second / max(seconds, 1e-3))


def _others(pids: Iterable[int]) -> int | None:
    """Return the ticks that all but these processes have used; None where nobody counts them."""
    with suppress(OSError, ValueError):
        words = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
        user, nice, system, _, _, *interrupts = map(int, words)
        everyone = user + nice + system + sum(interrupts)
        return everyone - sum(_own(each) for pid in pids for each in (pid, *descendants(pid)))
    return None


def _own(pid: int) -> int:
    with suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(words[11]) + int(words[12])  # user and system time
    return 0


def descendants(pid: int) -> list[int]:
    """Return the processes below ``pid``, as far as the system tells."""
    with suppress(OSError):
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [each for child in map(int, listed) for each in (child, *descendants(child))]
    return []
