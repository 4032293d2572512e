"""The processes of a run: all whose working folder is the run's own."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

Found = dict[int, str]  # pid -> when it started, by which a later process of that pid is another


def of(folder: Path) -> Found:
    """Return what runs in ``folder``: launchers, ranks, loader processes; no zombies."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            fields = _fields(int(path.name))
            if fields[0] not in "ZX" and os.readlink(path / "cwd") == str(folder):
                found[int(path.name)] = fields[19]
    return found


def ranks(launcher: int) -> list[int]:
    """Return the training processes that a launcher started, in the order of their pids."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            is_child = _fields(int(path.name))[1] == str(launcher)
            words = (path / "cmdline").read_bytes().split(b"\0")
            if is_child and b"launch.train" in words and b"torch.distributed.run" not in words:
                found.append(int(path.name))
    return sorted(found)


def family(pid: int) -> Found:
    """Return a process and all that descends from it."""
    parents: dict[int, list[int]] = {}
    started: Found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            fields = _fields(int(path.name))
            parents.setdefault(int(fields[1]), []).append(int(path.name))
            started[int(path.name)] = fields[19]
    found = [pid]
    for each in found:  # grows meanwhile
        found += parents.get(each, [])
    return {each: started[each] for each in found if each in started}


def still_there(known: Found) -> list[int]:
    """Return those that have not ended."""
    left = []
    for pid, started in known.items():
        with suppress(OSError, IndexError):
            fields = _fields(pid)
            if fields[0] not in "ZX" and fields[19] == started:
                left.append(pid)
    return left


def _fields(pid: int) -> list[str]:
    """Return proc(5)'s fields from the third on: state, parent, ..., start time."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
