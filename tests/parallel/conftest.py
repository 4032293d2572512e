"""Processes that have an environment of their own and meet as people's processes do."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import pytest


@pytest.fixture
def children(tmp_path) -> Callable[..., list[tuple[int | None, str]]]:
    """``children(2, body, *args, NAME="x")`` calls ``body(rank, *args)`` in two processes.

    Returns each one's exit code, and what it printed with what ``body`` returned at the end.
    ``body`` is a module-level function.
    """

    def run(
        count: int, body: Callable[..., str], *args: Any, timeout_s: float = 40, **variables: str
    ) -> list[tuple[int | None, str]]:
        context = get_context("forkserver")
        paths = [tmp_path / f"child{rank}.txt" for rank in range(count)]
        started = [
            context.Process(target=_child, args=(str(path), variables, body, rank, args))
            for rank, path in enumerate(paths)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(timeout_s)
            if process.is_alive():
                process.kill()
                process.join()
        found = [process.exitcode for process in started]
        for process in started:
            process.close()
        return [(code, path.read_text()) for code, path in zip(found, paths, strict=True)]

    return run


def _child(
    path: str, variables: dict[str, str], body: Callable[..., str], rank: int, args: Any
) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update({"OMP_NUM_THREADS": "1", **variables})
    os.write(1, str(body(rank, *args)).encode())
