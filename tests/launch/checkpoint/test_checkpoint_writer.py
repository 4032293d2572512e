"""Checkpoints that are written in the background: the same bytes, and none is lost."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest
import torch

from launch.checkpoint import Order, Writer, newest, read
from launch.checkpoint.writer import NICE


@pytest.fixture
def writer(tmp_path):
    ours = Writer(tmp_path / "checkpoints", keep=2, asynchronous=True)
    yield ours
    ours.close()


def order(step, size=8, **more):
    optimizer = {"0/x/step": torch.tensor(3.0), "0/x/exp": torch.ones(3, dtype=torch.complex64)}
    return Order(step, 0, {"x": torch.full((size,), float(step))}, optimizer, {"n": [step]}, **more)


def test_the_bytes_are_those_of_one_written_at_once(tmp_path, writer, files_of):
    at_once = Writer(tmp_path / "at-once", keep=2)
    for step in (1, 2):  # the second uses the memory of the first again
        turned = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)
        model = {"turned": turned, "tied": turned, "part": turned[1], "none": torch.zeros(0)}
        for each in (at_once, writer):
            each.write(Order(step, 0, model, {"0/y": torch.ones(3).conj()}, {"n": step}))
        writer.wait()
    assert files_of(tmp_path / "checkpoints") == files_of(tmp_path / "at-once")


def test_what_training_changes_meanwhile_is_not_in_it(writer):
    ordered = order(1, 5_000_000)
    writer.write(ordered)
    ordered.model["x"].zero_()
    ordered.optimizer["0/x/step"].add_(1)
    ordered.state["n"].append(2)
    writer.wait()
    [written] = writer.finished()
    model, optimizer, state = read(written.path)
    assert model["x"].eq(1).all()
    assert (float(optimizer["0/x/step"]), state) == (3.0, {"n": [1]})


def test_shapes_and_types_may_change_from_one_to_the_next(writer):
    for tensor in (torch.zeros(3), torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64)):
        writer.write(Order(1, 0, {"x": tensor}, {}, {}))
        writer.wait()
        back = read(newest(writer.folder)[0])[0]["x"]
        assert back.dtype == tensor.dtype
        assert torch.equal(back, tensor)


def test_the_next_one_waits_for_the_one_under_way(writer):
    writer.write(order(1, 10_000_000))
    assert writer.finished() == []
    writer.write(order(2, 10_000_000))
    [first] = writer.finished()
    assert (first.step, first.error) == (1, None)
    assert first.stalled_s < first.seconds
    writer.wait()
    [second] = writer.finished()
    assert (second.step, second.error) == (2, None)


def test_closing_waits_for_the_one_under_way(tmp_path):
    writer = Writer(tmp_path, keep=1, asynchronous=True)
    writer.write(order(1, 10_000_000, best=True))
    writer.close()
    assert newest(tmp_path) == (tmp_path / "step-00000001", [])
    assert (tmp_path / "best").exists()
    writer.close()  # and once more does no harm
    writer.write(order(2))
    assert [each.step for each in writer.finished()] == [1, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="no niceness of a thread's own")
def test_the_thread_that_writes_stands_back_for_training(writer):
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    writer.write(order(1))
    [thread] = [each for each in threading.enumerate() if each.name.startswith("checkpoints")]
    writer.wait()
    assert os.getpriority(os.PRIO_PROCESS, thread.native_id) == NICE
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine


def test_one_that_cannot_be_written_is_told_and_the_next_one_can(writer):
    writer.write(order(1))
    writer.wait()
    writer.folder.rename(writer.folder.with_name("moved"))
    writer.folder.write_text("mine")
    writer.write(order(2))
    writer.wait()
    assert [bool(each.error) for each in writer.finished()] == [False, True]
    writer.folder.unlink()
    writer.write(Order(3, 0, {"x": torch.eye(2).to_sparse()}, {}, {}))
    writer.write(order(4))
    writer.wait()
    refused, written = writer.finished()
    assert "x is a meta, sparse or quantized tensor" in str(refused.error)
    assert written.path.name == "step-00000004"


def test_D14_killed_while_it_is_written_the_one_before_it_is_found(tmp_path, run_child):
    code = """
        import os, signal, sys
        from pathlib import Path
        import torch
        from launch.checkpoint import Order, Writer

        folder = Path(sys.argv[1])
        writer = Writer(folder, keep=1, asynchronous=True)
        writer.write(Order(1, 0, {"x": torch.ones(3)}, {}, {}))
        writer.write(Order(2, 0, {"x": torch.zeros(20_000_000)}, {}, {}))
        while not (folder / ".step-00000002.part" / "model.safetensors").exists():
            pass
        os.kill(os.getpid(), signal.SIGKILL)
        """
    assert run_child(code, tmp_path).returncode == -signal.SIGKILL
    assert (tmp_path / ".step-00000002.part").is_dir()
    assert newest(tmp_path) == (tmp_path / "step-00000001", [])
