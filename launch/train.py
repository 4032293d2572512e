"""Train: ``torchrun --nproc_per_node=2 -m launch.train [FILE.yaml ...] [key=value ...]``."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # until the run listens, a signal ends the process; a KeyboardInterrupt in the seconds that
    # torch takes to be imported may be caught there, and lost
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from launch.config import help_text, load, parse, to_yaml
from launch.entry import enter
from launch.run import run
from parallel import whoami

FLAGS: dict[str, type] = {"help": bool, "print-config": bool, "max-minutes": float}


def main(args: list[str]) -> int:
    """Train as ``args`` say; return the exit code."""
    words = parse(args, FLAGS)
    place = whoami()
    if words.flags["help"]:
        return _show(help_text(), place.rank)
    config = load(words.files, words.overrides)
    if words.flags["print-config"]:
        return _show(to_yaml(config), place.rank)
    notes = [
        f"{word} is ignored: the launcher's variables say who we are" for word in words.ignored
    ]
    return run(config, place, notes, words.flags["max-minutes"])


def _show(text: str, rank: int) -> int:
    if not rank:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    enter(main)
