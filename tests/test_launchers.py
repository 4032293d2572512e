"""Under the real torchrun: killed, told to stop, restarting ranks, losing and gaining nodes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.soak import processes
from tests.soak.history import entries, faults, history

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
STEPS_AN_EPOCH = 23
WORDS = (
    "task._target_=tests.soak.ledger.LedgerDigits",
    "task.ballast_mb=0",
    "checkpoint.every_steps=5",
    "data.workers=2",
    "log.progress=none",
    "name=a",
)


class Runs:
    """Runs that are started in one folder; what they print comes to ``output``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, list[subprocess.Popen]()

    def start(
        self, *torchrun: str, words: tuple[str, ...] = (), **variables: str
    ) -> subprocess.Popen:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "SOAK_PACE": "0.03 0 0", **variables}
        environ["PYTHONPATH"] = str(Path(__file__).parents[1])
        command = [sys.executable, "-m", "torch.distributed.run", *torchrun, "-m", "launch.train"]
        with (self.folder / "terminal.txt").open("a") as terminal:
            self.started.append(
                subprocess.Popen(
                    [*command, *WORDS, *words],
                    cwd=self.folder,
                    env=environ,
                    stdout=terminal,
                    stderr=subprocess.STDOUT,
                )
            )
        return self.started[-1]

    def wait(self, is_over: Callable[[], bool], wait_s: float) -> float:
        """Return after how many seconds ``is_over``; by then it must be."""
        start = monotonic()
        while not is_over():
            assert monotonic() - start < wait_s, self.output
            sleep(0.05)
        return monotonic() - start

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda: self.last_step >= step, 60)

    @property
    def last_step(self) -> int:
        done = entries(self.folder)
        return done[-1]["step"] if done else 0

    @property
    def attempts(self) -> list[tuple[int, int]]:
        """The first and last step of each attempt, as rank 0 did them."""
        groups = groupby(entries(self.folder), lambda entry: entry["attempt"])
        steps = [[entry["step"] for entry in group] for _, group in groups]
        return [(each[0], each[-1]) for each in steps]

    @property
    def world_sizes(self) -> list[int]:
        """How many ranks trained, one after the other."""
        lines = map(json.loads, (self.folder / "runs/a/metrics.jsonl").read_text().splitlines())
        sizes = [line["world_size"] for line in lines if line["event"] == "start"]
        return [size for size, _ in groupby(sizes)]

    @property
    def status(self) -> dict:
        return json.loads((self.folder / "runs/a/status.json").read_text())

    @property
    def output(self) -> str:
        return (self.folder / "terminal.txt").read_text()

    def close(self) -> None:
        for pid in processes.of(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.wait()


@pytest.fixture
def runs(tmp_path) -> Iterator[Runs]:
    found = Runs(tmp_path.resolve())
    yield found
    found.close()


def completed(runs: Runs, epochs: int) -> None:
    """Check that a run came to its end, and that each epoch had each sample once."""
    assert runs.status["state"] == "completed"
    steps = history(runs.folder)
    assert sorted(steps) == list(range(1, epochs * STEPS_AN_EPOCH + 1))
    assert faults(steps) == []
    full = {len(s.samples) for k, s in steps.items() if k % STEPS_AN_EPOCH}
    assert full == {64}


ALONE = ("--standalone", "--nproc_per_node=2")


@pytest.mark.parametrize("name", ["KILL", "USR1", "TERM", "INT"])
def test_A11_whatever_ends_torchrun_no_process_stays_and_the_same_command_goes_on(runs, name):
    launcher = runs.start(*ALONE, words=("train.epochs=6",))
    runs.wait_for_step(8)
    there = processes.of(runs.folder)
    assert len(there) >= 1 + 2 + 2 * 2
    launcher.send_signal(getattr(signal, f"SIG{name}"))
    gone_s = runs.wait(lambda: launcher.poll() is not None, 15)
    again = runs.start(*ALONE, words=("train.epochs=6",))
    runs.wait(lambda: not processes.still_there(there), 15 - gone_s)
    assert again.wait(90) == 0, runs.output
    completed(runs, 6)
    (_, stopped), (resumed, _) = runs.attempts
    assert resumed == stopped + 1  # they had saved before they left
    assert not processes.of(runs.folder)


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_torchrun_told_to_stop_leaves_a_checkpoint_of_that_step_and_no_process(runs, name):
    launcher = runs.start(*ALONE, words=("train.epochs=400",))
    runs.wait_for_step(8)
    launcher.send_signal(getattr(signal, f"SIG{name}"))
    runs.wait(lambda: not processes.of(runs.folder), 10)
    found = runs.status
    assert found["state"] == "stopped"
    assert found["reason"].startswith(f"SIG{name} on rank ")
    assert found["step"] == runs.last_step
    assert (runs.folder / f"runs/a/checkpoints/step-{found['step']:08d}").is_dir()
    assert "killed by signal" not in runs.output  # loader processes died of their own
    assert "Traceback" not in runs.output.partition("completed")[0].partition("stopped")[0]


@pytest.mark.parametrize("kind", ["raise", "kill"])
def test_A12_a_restarted_attempt_goes_on_from_the_checkpoint(runs, kind):
    fault = (f"fault.kind={kind}", "fault.step=13", "fault.rank=1", "train.epochs=2")
    assert runs.start(*ALONE, "--max-restarts=2", words=fault).wait(120) == 0, runs.output
    assert [first for first, _ in runs.attempts] == [1, 11]
    completed(runs, 2)


def test_A12_a_mistake_is_printed_once_an_attempt_and_writes_nothing(runs):
    started = monotonic()
    ended = runs.start(*ALONE, "--max-restarts=2", words=("train.epoch=1",))
    assert ended.wait(120) == 1
    assert 1 <= runs.output.count("there is no key train.epoch") <= 3
    assert monotonic() - started < 90
    assert not (runs.folder / "runs").exists()


@pytest.fixture
def agents(runs) -> Callable[..., tuple[subprocess.Popen, ...]]:
    """``agents(True, False)`` starts torchrun for a node each; True: where the meeting is held."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def start(*hosts: bool, epochs: int, **variables: str) -> tuple[subprocess.Popen, ...]:
        words = (f"train.epochs={epochs}", "data.workers=1")
        torchrun = ("--nnodes=1:2", "--nproc_per_node=1", "--max-restarts=3", "--rdzv-id=a")
        torchrun = (*torchrun, "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}")
        conf = "--rdzv-conf=last_call_timeout=5,is_host={}"
        return tuple(
            runs.start(*torchrun, conf.format(str(is_host).lower()), words=words, **variables)
            for is_host in hosts
        )

    return start


def lose(agent: subprocess.Popen) -> None:
    """Let a node be lost: its launcher and all its processes die at once."""
    for pid in processes.family(agent.pid):
        os.kill(pid, signal.SIGKILL)
    agent.wait()


def test_elastic_the_other_node_goes_on_with_the_same_global_batch(runs, agents):
    host, other = agents(True, False, epochs=4)
    runs.wait_for_step(8)
    lose(other)
    assert host.wait(150) == 0, runs.output
    assert runs.world_sizes == [2, 1]
    completed(runs, 4)


def test_elastic_a_node_that_comes_back_takes_part_again(runs, agents):
    # where torchrun's agents share their store, torch 2.13 tells a newcomer no address
    apart = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    host, other = agents(True, False, epochs=25, **apart)
    runs.wait_for_step(8)
    lose(other)
    runs.wait(lambda: len(runs.attempts) > 1 and runs.world_sizes == [2, 1], 90)
    (back,) = agents(False, epochs=25, **apart)
    assert (host.wait(200), back.wait(60)) == (0, 0), runs.output
    assert runs.world_sizes == [2, 1, 2]
    completed(runs, 25)


def test_elastic_without_the_host_the_run_ends_and_the_same_command_goes_on(runs, agents):
    host, other = agents(True, False, epochs=4)
    runs.wait_for_step(8)
    lose(host)
    assert other.wait(90) != 0
    runs.wait(lambda: not processes.of(runs.folder), 15)
    again = agents(True, False, epochs=4)
    assert [agent.wait(120) for agent in again] == [0, 0], runs.output
    completed(runs, 4)
