"""What each rank says for itself: ``ranks/rank-N.log`` in the run folder."""

from __future__ import annotations

import faulthandler
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"


@contextmanager
def rank_log(folder: Path, rank: int) -> Iterator[None]:
    """Send logging, warnings and fatal signals to the rank's file; prints too but on rank 0."""
    folder.mkdir(parents=True, exist_ok=True)  # rank 0 may not have come this far
    with ExitStack() as stack:
        file = stack.enter_context(
            (folder / f"rank-{rank}.log").open("a", encoding="utf-8", buffering=1)
        )
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter(FORMAT))
        root = logging.getLogger()
        root.addHandler(handler)
        stack.callback(root.removeHandler, handler)
        was_enabled = faulthandler.is_enabled()
        faulthandler.enable(file)
        stack.callback(faulthandler.enable if was_enabled else faulthandler.disable)
        if rank:
            stack.enter_context(redirect_stdout(file))
            stack.enter_context(redirect_stderr(file))
        logging.getLogger("launch").info("rank %d: process started, python %s", rank, sys.version)
        stack.enter_context(warnings.catch_warnings())
        yield
