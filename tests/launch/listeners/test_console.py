import fcntl
import os
import pty
import re
import struct
import termios
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from launch.events import CheckpointSaved, Notice, RunEnded
from launch.listeners import Console, text


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_the_start_is_one_line_with_all_that_was_decided(facts):
    event = facts.started(folder=Path("runs/digits"))
    assert text.started(event) == (
        "digits: ddp on 2 processes (cpu, gloo), global batch 64 = 2 x 32, float32, "
        "12,345 parameters, 460 steps in 20 epochs -> runs/digits"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"world_size": 1, "backend": None}, "ddp on 1 process (cpu), "),
        ({"world_size": 1, "batch_sizes": (64, 64)}, "global batch 64, float32"),
        ({"world_size": 2, "batch_sizes": (64, 64)}, "global batch 64, float32"),
        ({"world_size": 3, "batch_sizes": (21, 22)}, "global batch 64 = 3 x (21 to 22), float32"),
        ({"accumulate": 4}, "global batch 64 = 2 x 32 in 4 rounds, "),
        ({"epochs": None}, "parameters, 460 steps -> "),
        ({"steps": None}, "parameters, 20 epochs -> "),
        ({"steps": None, "epochs": None}, "parameters, no limit of steps -> "),
        (
            {"config": {"train": {"max_minutes": 2.0}}},
            "460 steps in 20 epochs or at most 2 min -> ",
        ),
        (
            {"config": {"train": {"max_steps": 50}}, "steps": 50},
            "parameters, at most 50 steps (train.max_steps) -> ",
        ),
        (
            {"config": {"train": {"max_steps": 1, "max_minutes": 2.0}}, "steps": 1},
            "parameters, at most 1 step (train.max_steps) or at most 2 min -> ",
        ),
        ({"config": {"train": {"max_steps": 999}}}, "parameters, 460 steps in 20 epochs -> "),
        ({"start_step": 120}, ", going on after step 120"),
    ],
)
def test_the_start_line_fits_the_run(facts, changes, words):
    assert words in text.started(facts.started(**changes))


def test_a_line_of_progress_stands_alone(facts):
    event = facts.progress(120, loss=0.08765, samples_per_s=None, skipped=2)
    assert text.progress(event, 460, 83.4) == (
        "step 120/460  epoch 6  loss 0.0877  lr 0.002  warming up  2 skipped  1:23 left"
    )
    event = replace(event, samples_per_s=1234.5, skipped=0)
    assert text.progress(event, None, None) == (
        "step 120  epoch 6  loss 0.0877  lr 0.002  1,234 samples/s"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0912, "0.0912"), (0, "0.0000"), (1e-6, "1.000e-06"), (2e7, "2.000e+07"),
     (float("nan"), "nan"), (float("-inf"), "-inf")],
)  # fmt: skip
def test_numbers_are_short_and_never_hidden(value, shown):
    assert text.number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (59.6, "1:00"), (83, "1:23"), (3723, "1:02:03"), (-1, "0:00")],
)
def test_durations_read_as_a_clock(seconds, shown):
    assert text.duration(seconds) == shown


def test_a_whole_run_in_lines(facts, clock, capsys):
    console = Console("lines", clock)
    console(facts.started())
    clock.now += 1
    console(facts.progress(10, samples_per_s=None, time_s={}))
    console(Notice("data.workers was 0, is 2"))
    clock.now += 1
    console(facts.progress(20))
    console(facts.evaluated(20, loss=0.0912, accuracy=0.9722))
    console(CheckpointSaved(20, 1, facts.folder / "checkpoints/step-00000020", 0.12))
    console(facts.ended(20, reason="20\nepochs"))
    console.close()
    runs = facts.folder.parent
    assert lines(capsys)[1:] == [
        "step 10/460  epoch 1  loss 0.1000  lr 0.002  warming up  0:45 left",
        "note: data.workers was 0, is 2",
        "epoch 0: valid/loss 0.0912, valid/accuracy 0.9722 (360 samples)",
        f"checkpoint: step 20 -> {runs}/digits/checkpoints/step-00000020 (0.1 s)",
        "step 20/460  epoch 1  loss 0.0500  lr 0.002  1,234 samples/s  0:44 left",
        "completed after 20 steps, 0 epochs, 0:35 (20 epochs)",
        "valid/accuracy 0.9722",
        "a step took 10 ms: data 10 %, forward 40 %, backward 50 % (warm-up steps are left out)",
        f"run folder: {runs}/digits",
        f"tensorboard --logdir {runs}",
    ]


def test_an_evaluation_of_nothing_is_called_that(facts):
    event = replace(facts.evaluated(23), samples=0, metrics={})
    assert text.evaluation(event) == (
        "note: epoch 1: the split 'valid' gave no sample, so there was nothing to evaluate; "
        "its stream is empty, or was used up before"
    )


def test_lines_come_no_faster_than_they_can_be_read(facts, clock, capsys):
    console = Console("lines", clock)
    console(facts.started())
    for step in range(1, 461):
        clock.now += 0.1
        console(facts.progress(step))
    steps = [int(found[1]) for line in lines(capsys) if (found := re.match(r"step (\d+)/", line))]
    assert steps[0] == 1
    assert steps[-1] == 460
    assert 46 / 2 - 3 <= len(steps) <= 46 / 2 + 2


def test_the_time_left_ends_at_the_first_limit(facts, clock, capsys):
    config = {"train": {"max_minutes": 1.0}}
    console = Console("lines", clock)
    console(facts.started(config=config, steps=None, epochs=None))
    clock.now += 15
    console(facts.progress(10))
    assert lines(capsys)[1].endswith("0:45 left")


def test_the_time_left_of_a_run_that_goes_on_counts_its_own_steps(facts, clock, capsys):
    console = Console("lines", clock)
    console(facts.started(start_step=440))
    clock.now += 5
    console(facts.progress(445))
    clock.now += 5
    console(facts.progress(450))
    assert [line.split("  ")[-1] for line in lines(capsys)[1:]] == ["0:15 left", "0:10 left"]


def test_phases_are_weighted_by_steps(facts, clock, capsys):
    console = Console("none", clock)
    console(facts.started(start_step=10))
    console(facts.progress(20, time_s={}))
    console(facts.progress(50, time_s={"data": 0.0, "step": 0.010}))
    console(facts.progress(60, time_s={"data": 0.05, "step": 0.050}))
    console(facts.ended(60))
    assert "a step took 20 ms: data 62 % (warm-up" in capsys.readouterr().out


def test_none_says_start_notes_and_end_only(facts, clock, capsys):
    console = Console("none", clock)
    console(facts.started())
    console(facts.progress(10))
    console(facts.evaluated(10))
    console(CheckpointSaved(10, 0, Path("x"), 0.1))
    console(Notice("careful"))
    console(facts.ended(10))
    said = [line.split()[0] for line in lines(capsys)]
    assert said == ["digits:", "note:", "completed", "valid/accuracy", "a", "run", "tensorboard"]


def test_a_failure_before_the_start_is_one_line(capsys):
    console = Console()
    console(RunEnded("failed", 0, 0, "ValueError: no data\n(train.py:3)", 1, {}, 0.4))
    console.close()
    assert lines(capsys) == ["failed on rank 1 after 0 steps, 0 epochs, 0:00"]


def test_a_stopped_run_says_so(facts, capsys):
    console = Console("none")
    console(facts.started())
    console(facts.ended(17, state="stopped", reason="SIGTERM"))
    said = "stopped after 17 steps, 0 epochs, 0:35 (SIGTERM); the same command goes on from here"
    assert said in lines(capsys)


def test_where_no_terminal_is_there_is_no_bar(facts, capsys):
    console = Console("auto")
    console(facts.started())
    console(facts.progress(10))
    console.close()
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].startswith("step 10/460")
    assert captured.err == ""


@contextmanager
def terminal():
    """Lay stdout and stderr on a terminal of 120 columns; yields what returns all it was shown."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    os.set_blocking(ours, False)

    def shown():
        parts = []
        with suppress(BlockingIOError):
            while True:
                parts.append(os.read(ours, 65536))
        return b"".join(parts).decode()

    with open(theirs, "w", encoding="utf-8") as out, redirect_stdout(out), redirect_stderr(out):
        yield shown
    os.close(ours)


def test_on_a_terminal_a_bar_moves_and_lines_stand_above_it(facts, clock):
    with terminal() as shown:
        console = Console("auto", clock)
        console(facts.started())
        clock.now += 2
        console(facts.progress(230, loss=0.0123))
        console(facts.evaluated(230, loss=0.0912))
        console(facts.ended(230))
        console.close()
        text = shown()
    assert " 50%|" in text
    assert "| 230/460, loss 0.0123, 1,234 samples/s, 0:02 left" in text
    assert re.search(r"\repoch 10: valid/loss 0.0912 \(360 samples\)\r\n", text)
    assert re.search(r"left *\r\ncompleted after 230 steps", text)


def test_a_bar_without_a_known_end_counts(facts):
    with terminal() as shown:
        console = Console("bar")
        console(facts.started(steps=None, epochs=None))
        console(facts.progress(230))
        console.close()
        assert "230 steps, loss 0.0043, 1,234 samples/s" in shown()
