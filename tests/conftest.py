"""Fixtures for tests that need several processes, and guards against what a test may leave."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from parallel import World, join

torch.set_num_threads(1)

# One server imports torch once; every rank is then forked from it in about 0.1 s, where a fresh
# interpreter for each rank takes as long as `import torch` does.
mp.get_context("forkserver").set_forkserver_preload(
    [
        "torch",
        "torch.distributed",
        "torch._dynamo",  # optimizers import it
        "launch.train",
        "parallel.sharded.engine",  # a second, in each rank that divides a model
        "numpy",
        "torch.utils.tensorboard.summary",  # and what else rank 0 imports late: half a second
        "tensorboard.compat.proto.event_pb2",
        "tensorboard.summary.writer.record_writer",
        "safetensors.torch",
    ]
)


def _rank(
    rank: int, size: int, store: str, body: Callable[..., None], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    with join(rank=rank, size=size, store=store, timeout_s=30) as world:
        body(world, *args)


@pytest.fixture
def in_ranks(tmp_path_factory) -> Callable[..., None]:
    """``in_ranks(2, body, *args)`` calls ``body(world, *args)`` in two processes.

    ``body`` is a module-level function; what it raises in any rank fails the test, with that
    rank's traceback.
    """

    def run(size: int, body: Callable[..., None], *args: Any, timeout_s: float = 60.0) -> None:
        store = tmp_path_factory.mktemp("world") / "store"
        context = mp.start_processes(
            _rank, (size, str(store), body, args), size, join=False, start_method="forkserver"
        )
        assert context is not None
        deadline = monotonic() + timeout_s
        while not context.join(timeout=1):  # True once all have ended, not at the first
            if monotonic() > deadline:
                for process in context.processes:
                    process.kill()
                pytest.fail(f"{size} ranks still busy after {timeout_s:g} s")

    return run


@dataclass(frozen=True)
class Ended:
    """How each rank of a run ended, and what it wrote to the terminal."""

    codes: list[int | None]
    outputs: list[str]

    @property
    def output(self) -> str:
        return "".join(self.outputs)


def _train(rank: int, size: int, port: int, folder: Path, words: tuple[str, ...]) -> None:
    """Be one rank of a run, as if started by hand in ``folder``."""
    if size > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["OMP_NUM_THREADS"] = "1"
    mp.set_start_method("fork", force=True)  # as in a process that a launcher started
    os.chdir(folder)
    terminal = os.open(folder / f"terminal-{rank}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(terminal, 1)
    os.dup2(terminal, 2)
    sys.argv = ["launch.train", *words]
    from launch.entry import enter
    from launch.train import main

    enter(main)


@pytest.fixture
def train(tmp_path) -> Callable[..., Ended]:
    """``train("train.epochs=1", processes=2)`` is ``launch.train`` in fresh processes."""

    def run(*words: str, processes: int = 1, timeout_s: float = 60) -> Ended:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = mp.get_context("forkserver")
        ranks = [
            context.Process(target=_train, args=(rank, processes, port, tmp_path, words))
            for rank in range(processes)
        ]
        for rank in ranks:
            rank.start()
        deadline = monotonic() + timeout_s
        for rank in ranks:
            rank.join(max(0.0, deadline - monotonic()))
        late = [number for number, rank in enumerate(ranks) if rank.is_alive()]
        for rank in ranks:
            rank.kill()
            rank.join()
        texts = [(tmp_path / f"terminal-{n}.txt").read_text() for n in range(processes)]
        if late:
            pytest.fail(f"ranks {late} still busy after {timeout_s:g} s: {texts}")
        return Ended([rank.exitcode for rank in ranks], texts)

    return run


@pytest.fixture
def alone() -> World:
    return World()


@pytest.fixture
def run_module(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_module("launch.train", "a=b")`` as a person would, in an empty folder.

    processes: through torchrun where more than 0. The result's stdout holds stderr too.
    """

    def run(
        module: str, *args: str, processes: int = 0, timeout_s: float = 90, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *args]
        if processes:
            torchrun = ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
            command = [sys.executable, "-m", *torchrun, "-m", module, *args]
        root = str(Path(__file__).parents[1])
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, **variables}
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request) -> Iterator[None]:
    """Fail a test that leaks a variable, a thread, a process, a group or a file in the tree."""
    root = Path(request.config.rootpath)
    variables, threads = dict(os.environ), set(threading.enumerate())
    files = {path.name for path in root.iterdir()}
    children = set(active_children())
    yield
    changed = {
        name
        for name in os.environ.keys() ^ variables.keys()
        | {n for n, v in variables.items() if os.environ.get(n) != v}
        if name != "PYTEST_CURRENT_TEST" and not name.startswith("TORCHINDUCTOR_")  # torch's own
    }
    assert not changed, f"left changed variables: {changed}"
    new = {t for t in set(threading.enumerate()) - threads if t.is_alive() and not t.daemon}
    assert not new, f"left threads: {new}"
    assert not set(active_children()) - children, "left processes"
    assert not dist.is_initialized(), "left a process group"
    fresh = {path.name for path in root.iterdir()} - files - {".pytest_cache", ".mypy_cache"}
    assert not fresh, f"left files in the source tree: {fresh}"
