"""Compare: ``python -m launch.compare [FILE.yaml ...] [key=value ...]``: every way, by turns."""

from __future__ import annotations

import signal
import sys

from launch.comparison.side_by_side import compare
from launch.comparison.wanted import Wanted, wanted
from launch.config import load, parse
from launch.entry import enter
from launch.folder.disk import told
from launch.folder.lock import Lock
from parallel import UsageError, whoami

FLAGS: dict[str, type] = {
    "help": bool,
    "minutes": float,
    "devices": int,
    "rows": str,
    "all": bool,
    "scale-batch": bool,
    "steps": int,
    "beside": str,
    "limit-s": float,
    "anew": bool,
}
HELP = """\
usage: python -m launch.compare [FILE.yaml ...] [key=value ...] [--flag ...]

Trains the same task under every strategy that this machine allows, by turns on the same devices,
and shows time, speed-up and memory side by side: on the terminal and in runs/compare-NAME/.
The same command goes on where it was. Keys are those of python -m launch.train --help.

  --minutes M       how long all rows may take together (3)
  --devices N       GPUs, or on a CPU shares of its cores (all GPUs, or up to 4 cores)
  --rows A,B        only rows whose names begin so: --rows single,ddp,pipeline
  --all             further rows: other microbatches, schedules, accumulation
  --scale-batch     also with a batch that grows with the replicas: weak scaling, a second table
  --steps N         steps of a turn (as many as fit into five rounds)
  --beside COMMAND  a program of yours as a row: its training of --steps steps, timed by itself
  --limit-s S       a row whose start, or turn, takes longer is ended (120)
  --anew            forget an earlier comparison in the same folder
  --help            show this
"""


def main(args: list[str]) -> int:
    """Compare as ``args`` say; return the exit code."""
    words = parse(args, FLAGS)
    if words.flags["help"]:
        sys.stdout.write(HELP)
        return 0
    if whoami().size > 1:
        raise UsageError(
            "launch.compare starts its processes itself; type python -m launch.compare, without "
            "torchrun or srun"
        )
    asked = wanted(words, load(words.files, words.overrides))
    with told(asked.folder):
        (asked.folder / "logs").mkdir(parents=True, exist_ok=True)
    lock = Lock(asked.folder / "lock", stale_after_s=300)
    lock.take()
    try:
        return _interruptible(asked)
    finally:
        lock.release()


def _interruptible(asked: Wanted) -> int:
    """Compare; told to stop, end all rows and show what there is."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    return compare(asked, _say)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    enter(main)
