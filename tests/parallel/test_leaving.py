import atexit
import sys
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from parallel import leave, peer_left


def leaving(_, code):
    atexit.register(print, "the exit hook ran")
    threading.Thread(target=time.sleep, args=(60,)).start()  # nobody waits for it
    sys.stdout.write("not yet flushed\n")
    leave(code)


def leaving_after_a_hook_that_fails(_):
    def hook():
        raise ValueError("from the hook")

    atexit.register(print, "the other hook ran")
    atexit.register(hook)
    sys.stdout.close()
    sys.stdout = sys.__stdout__ = None
    leave(3)


def leaving_loader_processes_behind(_):
    def hook():
        time.sleep(0.2)  # the signal of a child's end is taken here
        sys.stdout.write("the hook came to its end\n")

    data = TensorDataset(torch.arange(8.0))
    fork = {"multiprocessing_context": "fork", "persistent_workers": True}
    batches = iter(DataLoader(data, num_workers=1, **fork))
    next(batches)
    atexit.register(hook)
    leave(0)


def test_the_end_of_loader_processes_disturbs_no_exit_hook(children):
    [(code, text)] = children(1, leaving_loader_processes_behind)
    assert code == 0
    assert "the hook came to its end" in text
    assert "killed by signal" not in text


@pytest.mark.parametrize("code", [0, 2])
def test_A8_a_process_leaves_at_once_with_its_code_and_its_words(children, code):
    [(found, text)] = children(1, leaving, code, timeout_s=15)
    assert found == code
    assert "not yet flushed" in text
    assert "the exit hook ran" in text


def test_neither_a_failing_hook_nor_a_closed_stream_changes_the_code(children):
    [(found, _)] = children(1, leaving_after_a_hook_that_fails)
    assert found == 3


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1234"), True),
        (RuntimeError("Read error: Connection reset by peer"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("closed by peer"), False),
    ],
)
def test_A6_a_peer_that_left_is_told_from_an_own_fault(error, is_so):
    assert peer_left(error) is is_so
